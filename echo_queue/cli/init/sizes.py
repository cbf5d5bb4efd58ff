"""Chooses what a run's sizes are here: by the prompts that were read, the model, and this machine's GPUs."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from echo_queue.fleet.invitation import machine
from echo_queue.records import Message, PromptRow
from echo_queue.submission.length_limits import PromptLimits, limits_of

CHARACTERS_PER_TOKEN = 2.5
"""What is assumed of a tokenizer that is not here: of most English text it is more."""
ROOM = 1.25
"""How much longer than those that were read a prompt may be."""
LEAST_TOKENS = 32
HELD_OUT = 200
"""The number of prompts that an evaluation has, roughly; their mean is then known to some hundredths."""
LEAST_ROWS = 400
"""With fewer prompts all are trained."""
MOST_SHARE = 0.1
LEAST_SHARE = 0.002
"""The share that is held out where there are more prompts than were read."""
NEW_TOKENS = (1024, 512, 256, 128, 64, 32, 16, 8, 4)
NEW_TOKENS_ON_CPU = NEW_TOKENS[3:]
UPDATES = 20
"""So many updates at least, where the prompts suffice for them."""


class Sizes(NamedTuple):
    """Holds the figures of a configuration. `new_tokens`: the lengths to try, the longest first."""

    engine: str
    workers: int
    dtype: str
    batch_groups: int
    held_out: float
    prompt_tokens: int
    new_tokens: Sequence[int]
    chat: bool | None
    """True if the model reads chats; None where its files are not here."""


def sizes_of(model: str, rows: Sequence[PromptRow], *, more: bool) -> Sizes:
    """Returns the sizes for prompts of which `rows` were read. `more`: whether there are others."""
    found = machine.gpus() if machine.torch_cuda() else []
    limits = limits_of(Path(model).expanduser(), 1 << 30)
    chat = None if limits is None else limits.encoding.template is not None
    share = min(MOST_SHARE, round(HELD_OUT / len(rows), 3)) if len(rows) >= LEAST_ROWS else 0.0
    share = LEAST_SHARE if more else share
    return Sizes(
        engine="vllm" if found and find_spec("vllm") else "transformers",
        workers=max(1, len(found) - 1) if found else 2,
        dtype="bfloat16" if found else "float32",
        batch_groups=16 if more else max(1, min(16, round(len(rows) * (1 - share)) // UPDATES)),
        held_out=share,
        prompt_tokens=_prompt_tokens(limits, rows),
        new_tokens=NEW_TOKENS if found else NEW_TOKENS_ON_CPU,
        chat=chat,
    )


def _prompt_tokens(limits: PromptLimits | None, rows: Sequence[PromptRow]) -> int:
    """Returns a power of two, in tokens, that the longest prompt leaves some room in."""
    if limits is None:
        longest = max(len(str(row.prompt)) for row in rows) / CHARACTERS_PER_TOKEN
    else:
        template = limits.encoding.template
        messages = [
            [Message(role="user", content=row.prompt)] if isinstance(row.prompt, str) else row.prompt for row in rows
        ]
        texts = [template.prompt(one) for one in messages] if template else [str(row.prompt) for row in rows]
        longest = max(map(len, limits.tokenizer.encode_batch_fast(texts, add_special_tokens=True)))
    tokens = LEAST_TOKENS
    while tokens < longest * ROOM:
        tokens *= 2
    return tokens
