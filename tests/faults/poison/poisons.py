"""The poisons: what a prompt of each looks like, and of what reason it must be dead."""

import random
from collections.abc import Mapping
from typing import Any

from tests.faults.poison.model import BEYOND, REFUSED

TIME_OUT = r"environment\.timeout_s"
ENDED = r"the environment's process ended"

OF_PROMPTS = {"template": REFUSED, "ids": r"vocabulary|embeddings"}
"""Poisons that a worker meets before anything is generated: name → a pattern of the reason."""
OF_SCORING = {
    "raises": r"ValueError: poison: raises",
    "exits politely": r"SystemExit: poison: exits politely|" + ENDED,
    "interrupts": r"KeyboardInterrupt: poison: interrupts|" + ENDED,
    "exits": ENDED + r" with 3",
    "is killed": ENDED + r" with -9",
    "hangs": TIME_OUT,
    "hangs and ignores signals": TIME_OUT,
    "forks": r"ValueError: poison: forks",
    "prints": r"ValueError: poison: prints",
    "closes its files": ENDED,
    "leaves processes": r"ValueError: poison: leaves processes",
    "leaves processes and hangs": TIME_OUT,
    "leaves threads": r"ValueError: poison: leaves threads",
}
"""Poisons of what scores a group."""
OF_TURNS = {"no answer": r"empty"}
"""Poisons that only an environment has that answers the model; in a chat an empty answer is a turn like any other."""
HARMLESS = ("at the limit", "a long answer")
"""Answers that look like poison and are none: the group is whole, and trained."""
GOOD = ""
ONE_IN = 4


def of_kind(kind: str) -> Mapping[str, str]:
    """Returns the poisons of a run whose `environment.kind` is `kind`, with the pattern of each one's reason."""
    return {**OF_PROMPTS, **OF_SCORING, **(OF_TURNS if kind == "interactive" else {})}


def held_out(kind: str, draw: random.Random) -> list[dict[str, Any]]:
    """Returns the rows of a held-out set: each poison that a submitter with the model's files lets through, and as many
    good ones."""
    poisoned = [name for name in of_kind(kind) if name not in OF_PROMPTS]
    return [_row(name, draw) for poison in poisoned for name in (poison, GOOD)]


def rows(kind: str, draw: random.Random, count: int) -> list[dict[str, Any]]:
    """Returns `count` prompt rows, of which one in `ONE_IN` is poison; all poisons come before one comes again."""
    drawn = [name for _ in range(count) for name in draw.sample([*of_kind(kind)], len(of_kind(kind)))]
    poisoned = iter(drawn)
    others = (GOOD, *HARMLESS) if kind == "interactive" else (GOOD,)
    return [_row(next(poisoned) if not draw.randrange(ONE_IN) else draw.choice(others), draw) for _ in range(count)]


def _row(poison: str, draw: random.Random) -> dict[str, Any]:
    text = f"{draw.randrange(10)} + {draw.randrange(10)} ="
    chat = [{"role": "user", "content": text}]
    match poison:
        case "template":
            return {"prompt": [{"role": "system", "content": "Add."}, *chat], "poison": poison}
        case "ids":
            return {"prompt": f"{text} {BEYOND}", "poison": poison}
        case "no answer":
            return {"prompt": text, "poison": poison}
    return {"prompt": chat if draw.random() < 0.5 else text, "poison": poison}
