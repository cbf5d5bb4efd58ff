"""Mathematical answers, compared by math-verify: 1.0 if equal to the row's `answer` (or `solution`), else 0.0.

math-verify bounds its own work with SIGALRM, so it must run on the main thread of its process, as it does in the
scorer's process. A completion that it cannot parse in time is a wrong answer; a solution that it cannot parse is an
error, which the submission finds by the same reading.
"""

from echo_queue.errors import ConfigError, Problem
from echo_queue.submission.solutions import COLUMNS, read_solution
from workers.environments.protocol import Rewards, ScoringRequest, Tell


class Math:
    def __init__(self) -> None:
        try:
            import math_verify  # type: ignore[import-untyped]
        except ImportError:
            fix = "pip install 'echo-queue[environments]'"
            raise ConfigError(Problem("environment.kind", "math needs the math-verify package here", fix)) from None
        self._parse, self._verify = math_verify.parse, math_verify.verify

    async def score(self, request: ScoringRequest, tell: Tell) -> Rewards:
        column = next((name for name in COLUMNS if name in request.columns), None)
        if column is None:
            raise KeyError(f"needs a column {' or '.join(COLUMNS)}; the prompt has {sorted(request.columns)}")
        solution = read_solution(str(request.columns[column]))
        return Rewards([float(self._verify(solution, self._parse(one))) for one in request.completions])
