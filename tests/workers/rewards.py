"""Reward functions in TRL's signature, for the tests of the function environment."""

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any


def matches_column(completions: list[str], wanted: list[str], **kwargs: Any) -> list[float]:
    return [float(completion == word) for completion, word in zip(completions, wanted, strict=True)]


async def counts_ids(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(ids)) for ids in completion_ids]


def reads_chat(prompts: list[Any], completions: list[Any], **kwargs: Any) -> list[float]:
    pairs = zip(prompts, completions, strict=True)
    return [float(prompt[-1]["content"] == completion[0]["content"]) for prompt, completion in pairs]


def misbehaves(completions: list[str], **kwargs: Any) -> list[Any]:
    match completions[0]:
        case "raise":
            raise RuntimeError("no such luck")
        case "hang":
            time.sleep(3600)
        case "die":
            os._exit(7)
        case "nan":
            return [float("nan")] * len(completions)
        case "none":
            return [None] * len(completions)
        case "short":
            return []
    return [1.0] * len(completions)


def speaks_out_of_turn(completions: list[str], **kwargs: Any) -> list[float]:
    """Writes what the first completion says into every socket that this process has, before it answers."""
    frame = bytes.fromhex(completions[0])
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as found:
                found.sendall(frame)
        except OSError:
            continue
    return [1.0] * len(completions)


def as_told(prompts: list[str], completions: list[str], **kwargs: Any) -> list[Any]:
    """Misbehaves as its prompt says; otherwise any text is worth 1."""
    return misbehaves([prompts[0]] * len(completions))


not_a_function = 3
