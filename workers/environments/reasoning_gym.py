"""Any reasoning-gym dataset, scored by the dataset's own `score_answer`.

The answer is the text of the last <answer> tag, or the whole completion if there is no tag.
"""

import re
from importlib.util import find_spec

from echo_queue.errors import ConfigError, Problem
from echo_queue.submission.sources.reasoning_gym import load_package, original
from workers.environments.protocol import Rewards, ScoringRequest, Tell

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym:
    def __init__(self) -> None:
        if find_spec("reasoning_gym") is None:
            fix = "pip install 'echo-queue[environments]'"
            raise ConfigError(Problem("environment.kind", "needs the reasoning-gym package here", fix))
        load_package()  # takes a second, which should not count as a task's time

    async def score(self, request: ScoringRequest, tell: Tell) -> Rewards:
        dataset, entry = original(request.columns)
        return Rewards([float(dataset.score_answer(answer(one), entry)) for one in request.completions])


def answer(completion: str) -> str:
    tagged: list[str] = ANSWER.findall(completion)
    return (tagged[-1] if tagged else completion).strip()
