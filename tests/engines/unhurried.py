"""A plugin of the tests' servers that holds long samples back, so that none ends before a test has done with it."""

import time
from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from tests.engines import haste

LONG = 300
"""Tokens."""
AT_ONCE = 60
"""The tokens of a long sample that come at full speed."""
PAUSE_S = 0.5
"""The pause before each later one: the rest of a long sample takes minutes, unless a test waits for it."""
LOOK_S = 0.01


class Unhurried(LogitsProcessor):
    """Changes no logits."""

    def __init__(self, *_: object) -> None:
        self._drawn: dict[int, int] = {}
        """The tokens that each long sample has, by its row."""

    def apply(self, logits: Tensor) -> Tensor:
        self._drawn = {row: drawn + 1 for row, drawn in self._drawn.items()}
        if max(self._drawn.values(), default=0) > AT_ONCE:
            pause_ends = time.monotonic() + PAUSE_S
            while not haste.wanted() and time.monotonic() < pause_ends:
                time.sleep(LOOK_S)
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._drawn, batch_update, lambda asked, *_: 0 if asked.max_tokens >= LONG else None)
