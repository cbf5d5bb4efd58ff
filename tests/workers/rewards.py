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


def misbehaves(completions: list[str], **kwargs: Any) -> Any:
    count = len(completions)
    match completions[0]:
        case "raise":
            raise RuntimeError("no such luck")
        case "nested":
            return _first_word(None)
        case "secret":
            raise ConnectionError("cannot reach http://me:hunter2@judge:80/")
        case "hang":
            time.sleep(3600)
        case "die":
            os._exit(7)
    wrong: dict[str, Any] = {
        "nan": [float("nan")] * count,
        "none": [None] * count,
        "short": [],
        "last is a text": [1.0] * (count - 1) + ["0.4"],
        "one number": 1.0,
        "nothing": None,
        "a text": "1" * count,
    }
    return wrong.get(completions[0], [1.0] * count)


def _first_word(text: Any) -> Any:
    return text.split()[0]


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


def as_told(prompts: list[str], completions: list[str], **kwargs: Any) -> Any:
    """Misbehaves as its prompt says; otherwise any text is worth 1."""
    return misbehaves([prompts[0]] * len(completions))


not_a_function = 3


async def meets(completions: list[str], **kwargs: Any) -> list[float]:
    """Ends once as many calls wait here as the completions' text says: they wait side by side, or for ever."""
    met[completions[0]] = met.get(completions[0], 0) + 1
    while met[completions[0]] % int(completions[0]):
        await asyncio.sleep(0)
    return [float(len(completions))] * len(completions)


met: dict[str, int] = {}


def tells(completions: list[str], token_counts: list[int], finish_reasons: list[str], **kwargs: Any) -> list[float]:
    assert "versions" not in kwargs and "columns" not in kwargs
    return [count + 100.0 * (finish == "length") for count, finish in zip(token_counts, finish_reasons, strict=True)]


def tells_versions(*, versions: list[int], **kwargs: Any) -> list[float]:
    assert "token_counts" not in kwargs
    return [float(version) for version in versions]


async def fails_later(**kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    raise RuntimeError("later")
