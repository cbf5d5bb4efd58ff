"""Environments that take their time, for `benchmarks.scoring`: judges and tools that wait, and sums."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

JUDGE_S, TOOL_S = 1.5, 0.5


async def judge(completions: list[str], **kwargs: Any) -> list[float]:
    await asyncio.sleep(JUDGE_S)
    return [1.0] * len(completions)


def blocking_judge(completions: list[str], **kwargs: Any) -> list[float]:
    time.sleep(JUDGE_S)
    return [1.0] * len(completions)


def compute(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def computed(completions: list[str], rounds: list[int], **kwargs: Any) -> list[float]:
    compute(rounds[0])
    return [1.0] * len(completions)


class Tools:
    """A tool that answers after `TOOL_S`, until the turns are over."""

    def start(self, prompt: Any, columns: Mapping[str, Any], seed: int) -> "Tools":
        return self

    async def reply(self, text: str) -> str:
        await asyncio.sleep(TOOL_S)
        return "0"

    async def unfinished(self) -> float:
        return 1.0
