"""Hands of poker: hand i is dealt from (seed + i) and the seats alternate, so any machine can make any range of hands.

The columns of a row are those of its deal (`echo_queue.submission.sources.poker.Deal`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import orjson
from blake3 import blake3

from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.poker import Deal, Hand
from echo_queue.submission.sources.source import POKER, Scanned, spell

OPTIONS = {"size", "seed", "opponent"}


@dataclass(frozen=True)
class PokerSource:
    """Hands of one game. `options` are `size`, `seed` and `opponent`, one of `sources.poker.OPPONENTS`."""

    game: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if set(self.options) != OPTIONS:
            what = f"a poker set has the options {', '.join(sorted(OPTIONS))}, not {', '.join(sorted(self.options))}"
            raise PromptError(Problem("prompts.options", what, "write exactly those"))
        for name in ("size", "seed"):
            if type(self.options[name]) is not int or self.options[name] < 0:
                what = f"{name} is {self.options[name]!r}"
                raise PromptError(Problem("prompts.options", what, "write a whole number from 0"))

    @property
    def name(self) -> str:
        return spell(POKER + self.game, self.options)

    def location(self, index: int) -> str:
        return f"{POKER}{self.game} hand {index}"

    def scan(self, size: int) -> Iterator[Scanned]:
        total = self.options["size"]
        self.row(0)
        for number, first in enumerate(range(0, total, size)):
            count = min(size, total - first)
            yield Chunk(number, first, count, self._digest(first, count)), ()

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        if chunk.digest != self._digest(chunk.first, chunk.count):
            what = f"this machine's OpenSpiel ({_installed()}) is not the submitter's; its hands may differ"
            raise PromptError(Problem(self.name, what, "install the same version on both, then submit again"))
        return [self.row(index) for index in range(chunk.first, chunk.first + chunk.count)]

    def deal(self, index: int) -> Deal:
        """Returns the deal of hand `index`."""
        return Deal(self.game, self.options["opponent"], self.options["seed"] + index, index % 2)

    def row(self, index: int) -> PromptRow:
        """Returns the prompt of hand `index`. Raises `PromptError` for an unknown game or opponent."""
        deal = self.deal(index)
        return PromptRow(Hand(deal).prompt, deal.columns)

    def _digest(self, first: int, count: int) -> str:
        """Returns the digest of everything that decides what the hands are."""
        what = [_installed(), self.game, self.options, first, count]
        return blake3(orjson.dumps(what, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _installed() -> str:
    try:
        return version("open_spiel")
    except PackageNotFoundError:
        return "none"
