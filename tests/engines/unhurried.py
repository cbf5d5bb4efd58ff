"""A plugin of the tests' servers that slows long samples down, so that none ends before a test has checked it."""

import time
from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor

LONG = 300
"""Tokens."""
PAUSE_S = 0.01


class Unhurried(LogitsProcessor):
    """Changes no logits."""

    def __init__(self, *_: object) -> None:
        self._left = 0

    def apply(self, logits: Tensor) -> Tensor:
        if self._left:
            self._left -= 1
            time.sleep(PAUSE_S)
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: Any) -> None:
        for _, parameters, *_ in batch_update.added if batch_update else ():
            if parameters.max_tokens >= LONG:
                self._left = parameters.max_tokens
