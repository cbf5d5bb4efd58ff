"""A poker table: the prompt row's hand against its opponent, for chips (`echo_queue.submission.sources.poker`)."""

from collections.abc import Mapping
from typing import Any

from echo_queue.errors import ConfigError, PromptError
from echo_queue.records import Message
from echo_queue.submission.sources.poker import GAMES, Hand, deal_of
from echo_queue.submission.sources.poker.rules import load


class Poker:
    def __init__(self) -> None:
        try:
            load(next(iter(GAMES)))
        except PromptError as error:
            raise ConfigError(*error.problems) from None

    def start(self, prompt: str | list[Message], columns: Mapping[str, Any], seed: int) -> "Game":
        """The deal decides everything; the sample's seed nothing."""
        return Game(Hand(deal_of(columns)))


class Game:
    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    def reply(self, text: str) -> str | float:
        return self._hand.move(text)

    def unfinished(self) -> float:
        return self._hand.forfeit()
