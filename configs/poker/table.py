"""The environment: a table at which the model plays hands against a fixed opponent, told in words.

- A hand follows from its deal and the model's moves alone: cards and the opponent's choices are drawn from the deal's
  number and the moves so far. The samples of a group thus differ by the model's moves, and by nothing else.
- A text that names no legal move forfeits the hand: the model loses its chips in the pot, and one more.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from configs.poker.opponents import OPPONENTS, Choose
from configs.poker.rules import (
    DESCRIPTIONS,
    chips_in_the_pot,
    deck,
    legal_moves,
    load,
    own_rank,
    public_rank,
)

FORFEIT_CHIPS = 1.0
SIGNS = ".,:;!?*\"'`"
"""The signs that may stand around a move."""


@dataclass(frozen=True)
class Deal:
    """Everything that decides a hand, except the model's moves. Seat 0 moves first; `opponent` is in `OPPONENTS`."""

    game: str
    opponent: str
    deal: int
    seat: int


class Table:
    """The environment that `environment.function` names: it deals the hand of each prompt row."""

    def start(self, prompt: str, columns: Mapping[str, Any], seed: int) -> "Hand":
        """Starts a session. The row's columns determine it, so the sample's seed has no effect."""
        return Hand(Deal(**columns))


class Hand:
    """A hand in progress, which is a session. Raises `ValueError` for an unknown game or opponent."""

    def __init__(self, deal: Deal) -> None:
        self._deal = deal
        self._choose = _opponent(deal.game, deal.opponent)
        self._state = load(deal.game).new_initial_state()
        told = self._play()
        order, card = ("first", "second")[deal.seat], own_rank(self._state, deal.seat)
        self.prompt = f"{DESCRIPTIONS[deal.game]}\nYou move {order}. Your card: {card}.{told}{self._question()}"

    @property
    def moves(self) -> list[str]:
        """The model's legal moves; none once the hand is over."""
        return [] if self._state.is_terminal() else list(legal_moves(self._state))

    def named(self, text: str) -> str | None:
        """Returns the legal move that the first word of `text` names, or None."""
        word = next(iter(text.lower().split()), "").strip(SIGNS)
        return word if word in self.moves else None

    def reply(self, text: str) -> str | float:
        """Makes the move that `text` names. Returns the text that the model reads next, or its chips at the end."""
        word = self.named(text)
        if word is None:
            return self.unfinished()
        self._state.apply_action(legal_moves(self._state)[word])
        told = self._play()
        if self._state.is_terminal():
            return float(self._state.player_return(self._deal.seat))
        return f"\n{told.lstrip()}{self._question()}"

    def unfinished(self) -> float:
        """Returns the model's chips if it leaves the table now: it loses those in the pot, and one more."""
        return -chips_in_the_pot(self._state, self._deal.seat) - FORFEIT_CHIPS

    def _question(self) -> str:
        return f" Your move ({', '.join(self.moves)}):"

    def _play(self) -> str:
        """Plays cards and the opponent's moves until the model is to move or the hand is over; tells what it sees."""
        told = ""
        while not self._state.is_terminal() and self._state.current_player() != self._deal.seat:
            if self._state.is_chance_node():
                self._state.apply_action(self._next_card())
                shown = public_rank(self._state)
                told += f" Public card: {shown}." if shown else ""
            else:
                word = self._choose(self._state, random.Random(f"{self._deal.deal} {self._state.history()}"))
                self._state.apply_action(legal_moves(self._state)[word])
                told += f" Opponent: {word}."
        return told

    def _next_card(self) -> int:
        """Returns the next card. The deck is shuffled once, so the cards do not depend on the moves before them."""
        cards = list(deck(self._state))
        random.Random(f"{self._deal.deal} deck").shuffle(cards)
        left = {card for card, _ in self._state.chance_outcomes()}
        return next(card for card in cards if card in left)


@cache
def _opponent(game: str, name: str) -> Choose:
    rules = load(game)
    if name not in OPPONENTS:
        raise ValueError(f"there is no opponent {name!r}; choose one of: {', '.join(OPPONENTS)}")
    return OPPONENTS[name](rules)
