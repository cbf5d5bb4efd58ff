"""Additions in words, and what an answer is worth: the number alone, and the right one."""

import random
import re
from collections.abc import Sequence
from typing import Any

LEAST, MOST = 2, 49
HELD_OUT_EVERY = 6
"""One in so many pairs of numbers is held out."""
NUMBER = re.compile(r"\d+")


class Sums:
    """Prompts of the pairs of numbers of one side of the split, in an order that the seed draws.

    `prompts.options` are the arguments. The two sides have no pair in common, whatever their seeds.
    """

    def __init__(self, size: int, seed: int, held_out: bool = False) -> None:
        numbers = range(LEAST, MOST + 1)
        pairs = [(a, b) for a in numbers for b in numbers if ((7 * a + b) % HELD_OUT_EVERY == 0) == held_out]
        draw = random.Random(seed)
        draw.shuffle(pairs)
        self._pairs = [pairs[index % len(pairs)] for index in range(size)]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns a chat of one question, and its answer as a column."""
        a, b = self._pairs[index]
        question = f"What is {a} + {b}? Answer with the number only."
        return {"prompt": [{"role": "user", "content": question}], "answer": str(a + b)}


def right(completions: Sequence[Any], answer: Sequence[str], **columns: Any) -> list[float]:
    """Returns 1 for an answer whose last number is the right one."""
    return [float(NUMBER.findall(text_of(one))[-1:] == [sum]) for one, sum in zip(completions, answer, strict=True)]


def alone(completions: Sequence[Any], **columns: Any) -> list[float]:
    """Returns 1 for an answer that is a number and nothing else."""
    return [float(NUMBER.fullmatch(text_of(one).strip()) is not None) for one in completions]


def text_of(completion: Any) -> str:
    """Returns what the model said: a completion is a text, or the messages of a chat."""
    return completion if isinstance(completion, str) else str(completion[0]["content"])
