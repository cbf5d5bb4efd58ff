"""Lists of numbers to turn round, for configs/mixture.toml: prompts of one's own, and the reward of an answer.

A prompt is `reverse: 3 14 7 9 =` or `rotate: 3 14 7 9 =`; the answers are `9 7 14 3` and `14 7 9 3`.
"""

import random
from collections.abc import Sequence

NUMBERS = range(21)
RIGHT = 0.25
"""The share of right answers in the examples, from which the model learns the form of an answer."""


def answer_of(task: str, numbers: Sequence[int]) -> list[int]:
    """Returns the numbers in the order of the task: `reverse`, or `rotate`, which moves the first to the end."""
    return [*numbers[::-1]] if task == "reverse" else [*numbers[1:], numbers[0]]


def text(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


class Lists:
    """`size` prompts of a task, each of `length` different numbers that follow from `seed` and the prompt's index."""

    def __init__(self, task: str, size: int, seed: int, length: int = 4) -> None:
        self._task, self._size, self._seed, self._length = task, size, seed, length

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, str]:
        numbers = random.Random(f"{self._seed}/{index}").sample(NUMBERS, self._length)
        return {"prompt": self._prompt(numbers), "answer": text(answer_of(self._task, numbers))}

    def examples(self, count: int) -> list[list[tuple[str, str]]]:
        """Returns prompts apart from the run's own; most of their answers have the numbers in any order."""
        rng = random.Random(f"examples of {self._task}/{self._seed}")
        made = []
        for _ in range(count):
            numbers = rng.sample(NUMBERS, self._length)
            order = answer_of(self._task, numbers) if rng.random() < RIGHT else rng.sample(numbers, len(numbers))
            made.append([(self._prompt(numbers), text(order))])
        return made

    def _prompt(self, numbers: Sequence[int]) -> str:
        return f"{self._task}: {text(numbers)} ="


def in_place(prompts: list[str], completions: list[str], answer: list[str], **_columns: object) -> list[float]:
    """Returns the share of the numbers of each answer that stand where they belong; 0 for one of another length."""
    return [_share(completion.split(), right.split()) for completion, right in zip(completions, answer, strict=True)]


def _share(words: list[str], right: list[str]) -> float:
    if len(words) != len(right):
        return 0.0
    return sum(word == wanted for word, wanted in zip(words, right, strict=True)) / len(right)
