"""A poker table: the model plays the prompt row's hand for chips (`echo_queue.submission.sources.poker`)."""

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
        """Starts the deal of the row's columns, which determine the session; the sample's seed has no effect."""
        return Game(Hand(deal_of(columns)))


class Game:
    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    def reply(self, text: str) -> str | float:
        return self._hand.move(text)

    def unfinished(self) -> float:
        return self._hand.forfeit()
