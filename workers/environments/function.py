"""A user's reward function, called as TRL's trainers call theirs.

The keywords are `prompts`, `completions`, `completion_ids`, `trainer_state` (None here), and each further column as a
list. A completion of a chat prompt is `[{"role": "assistant", "content": …}]`, of a text prompt a text. The function
may be plain or `async def`, of which many calls wait side by side.
Source: huggingface/trl, docs/source/grpo_trainer.md, "Using a custom reward function".
"""

from collections.abc import Sequence
from typing import Any

from workers.environments.protocol import ScoringRequest
from workers.environments.reference import resolve


class Function:
    def __init__(self, reference: str) -> None:
        self._function = resolve(reference)

    def score(self, request: ScoringRequest) -> Any:
        count = len(request.completions)
        return self._function(
            prompts=[request.prompt] * count,
            completions=_completions(request),
            completion_ids=list(request.completion_ids),
            trainer_state=None,
            **{name: [value] * count for name, value in request.columns.items()},
        )


def _completions(request: ScoringRequest) -> Sequence[Any]:
    if isinstance(request.prompt, str):
        return list(request.completions)
    return [[{"role": "assistant", "content": completion}] for completion in request.completions]
