"""An environment in `verifiers`' own terms: the model is to say the answer, in three turns at most."""

from typing import Any

import verifiers as vf
from datasets import Dataset


class SayIt(vf.MultiTurnEnv):  # type: ignore[misc]
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        said = str(messages[-1].content)
        if said == "raise":
            raise vf.Error("no such luck")
        if said == state["answer"]:
            state["found"] = True
            state["final_env_response"] = [{"role": "user", "content": "yes"}]
            return []
        hint = f"not {said}; you have heard {state['info']['seed']}"
        return [{"role": "user", "content": hint}, {"role": "user", "content": "Again?"}]


def found(state: Any, **kwargs: Any) -> float:
    return 1.0 if state.get("found") else -float(len(state["trajectory"]))


def load_environment(max_turns: int = 3) -> Any:
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}], "answer": "x"}])
    return SayIt(dataset=rows, rubric=vf.Rubric(funcs=[found]), max_turns=max_turns)
