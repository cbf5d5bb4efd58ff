"""The prompts: hand i is dealt from (seed + i) and the seats alternate, so any machine can make any of them."""

import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from configs.poker.table import Deal, Hand

EXAMPLES_SEED_OFFSET = 100_000_000
"""Distance of the examples' deals from the run's own."""


class Hands:
    """The deals of one game as prompt rows; `prompts.options` are the arguments."""

    def __init__(self, size: int, seed: int, opponent: str, game: str = "leduc") -> None:
        self._size, self._seed, self._opponent, self._game = size, seed, opponent, game

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns the row of hand `index`: its prompt, and the columns from which `Table` deals it again."""
        deal = self.deal(index)
        return {"prompt": Hand(deal).prompt, **asdict(deal)}

    def deal(self, index: int) -> Deal:
        return Deal(self._game, self._opponent, self._seed + index, index % 2)

    def examples(self, count: int) -> Iterator[list[tuple[str, str]]]:
        """Yields what `model.base = "init"` makes the first model from: hands that the run does not hold, as pairs of a
        text and its answer. They are played at random: poker has no right answer, only the right form of one."""
        others = Hands(count, self._seed + EXAMPLES_SEED_OFFSET, self._opponent, self._game)
        for index in range(count):
            hand, rng = Hand(others.deal(index)), random.Random(self._seed + EXAMPLES_SEED_OFFSET + index)
            told: str | float = hand.prompt
            turns: list[tuple[str, str]] = []
            while isinstance(told, str):
                turns.append((told, f" {rng.choice(hand.moves)}"))
                told = hand.reply(turns[-1][1])
            yield turns
