"""Interactive environments for the tests: guess a number between 0 and 99."""

import os
import random
import time
from collections.abc import Mapping
from typing import Any


class Guessing:
    """The number follows from the seed and the row's `more`; each wrong guess costs a tenth."""

    def __init__(self, highest: int = 99) -> None:
        self._highest = highest
        self.started = 0

    def start(self, prompt: Any, columns: Mapping[str, Any], seed: int) -> "Round":
        self.started += 1
        return Round((random.Random(seed).randint(0, self._highest) + columns.get("more", 0)) % (self._highest + 1))


class Round:
    def __init__(self, number: int) -> None:
        self._number = number
        self._wrong = 0

    def reply(self, text: str) -> Any:
        match text:
            case "raise":
                raise RuntimeError("no such luck")
            case "hang":
                time.sleep(3600)
            case "die":
                os._exit(7)
            case "nan":
                return float("nan")
            case "nothing":
                return ""
            case "list":
                return [1.0]
        if int(text) == self._number:
            return 1.0 - self._wrong / 10
        self._wrong += 1
        return "higher" if int(text) < self._number else "lower"

    def unfinished(self) -> float:
        return -self._wrong / 10


class Forgetful:
    """An environment whose sessions end at their own time, whatever the model says."""

    def __init__(self) -> None:
        self._replies = 0

    def start(self, prompt: Any, columns: Mapping[str, Any], seed: int) -> "Forgetful":
        return self

    def reply(self, text: str) -> str | float:
        self._replies += 1
        return "go on" if self._replies < 3 else 1.0

    def unfinished(self) -> float:
        return 0.0


class NoEnvironment:
    """An environment without `start`."""


class Answers:
    """Answers every turn with the row's `answer`, `times` times over, until the sample has no room or no turns left."""

    def start(self, prompt: Any, columns: Mapping[str, Any], seed: int) -> "Answering":
        return Answering(columns["answer"] * columns.get("times", 1))


class Answering:
    def __init__(self, answer: str) -> None:
        self._answer = answer

    def reply(self, text: str) -> str:
        return self._answer

    def unfinished(self) -> float:
        return 0.5
