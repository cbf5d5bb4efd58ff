"""Reward functions for the tests of `echo-queue eval`."""

import time
from pathlib import Path
from typing import Any

GATE = "gate"
"""The column that names a file; a prompt that has it is scored once the file is there."""


def counts_tokens(completion_ids: list[list[int]], gate: list[str], **_: Any) -> list[float]:
    """Returns the shares of ten tokens. A prompt whose gate is missing keeps its process for ever."""
    if gate[0] and not Path(gate[0]).exists():
        time.sleep(3600)
    return [min(1.0, len(ids) / 10) for ids in completion_ids]


def refuses_seven(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    if "7" in prompts[0]:
        raise RuntimeError("seven is no number of ours")
    return [1.0] * len(completions)
