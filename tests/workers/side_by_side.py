"""Environments whose calls wait for one another, for the tests of calls side by side."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_arrived: list[int] = []
_all: list[asyncio.Event] = []


async def _meet(count: int) -> None:
    """Returns once `count` calls have come to this process."""
    if not _all:
        _all.append(asyncio.Event())
    _arrived.append(1)
    if len(_arrived) >= count:
        _all[0].set()
    await _all[0].wait()


async def judges(completions: list[str], meet: list[int], **kwargs: Any) -> list[float]:
    """Waits for the others, then does as told. The reward is the process."""
    await _meet(meet[0])
    match completions[0]:
        case "soon":
            await asyncio.sleep(0.02)
        case "hang":
            await asyncio.Event().wait()
        case "block":
            time.sleep(3600)
        case "die":
            os._exit(7)
    return [float(os.getpid())] * len(completions)


def computes(prompts: list[str], completions: list[str], meet: list[int], **kwargs: Any) -> list[float]:
    """Waits, in a process for each, until all have left their notes in the folder that the prompt names."""
    folder = Path(prompts[0])
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < meet[0]:
        time.sleep(0.01)
    return [float(os.getpid())] * len(completions)


class Tools:
    """Answers with its process, once `meet` sessions have asked."""

    async def start(self, prompt: Any, columns: Mapping[str, Any], seed: int) -> "Tool":
        return Tool(columns["meet"])


class Tool:
    def __init__(self, meet: int) -> None:
        self._meet = meet

    async def reply(self, text: str) -> str | float:
        await _meet(self._meet)
        return 1.0 if text == "end" else str(os.getpid())

    async def unfinished(self) -> float:
        return 0.0


class Places:
    """Plain sessions that answer with their process; the folder in the prompt tells when `meet` processes have one."""

    def start(self, prompt: Any, columns: Mapping[str, Any], seed: int) -> "Place":
        computes([prompt], ["x"], [columns["meet"]])
        return Place()


class Place:
    def reply(self, text: str) -> str:
        return str(os.getpid())

    def unfinished(self) -> float:
        return 0.0
