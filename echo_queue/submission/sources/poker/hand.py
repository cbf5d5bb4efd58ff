"""One hand between the model and a fixed opponent, in words.

- It follows from its deal and the model's moves alone: cards and the opponent's choices are drawn from the deal's
  number and what happened so far. The samples of a group thus differ by what the model did, and by nothing else.
- What is no legal move forfeits the hand: the chips in the pot, and one more.
"""

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.poker.opponents import OPPONENTS, Choose
from echo_queue.submission.sources.poker.rules import (
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
"""May stand around a move."""


@dataclass(frozen=True)
class Deal:
    """Decides a hand but for the model's moves. `seat` 0 moves first; `opponent` is one of `OPPONENTS`."""

    game: str
    opponent: str
    deal: int
    seat: int

    @property
    def columns(self) -> dict[str, Any]:
        """Of its prompt row."""
        return asdict(self)


def deal_of(columns: Mapping[str, Any]) -> Deal:
    """The inverse of `Deal.columns`. Raises `KeyError` for a prompt that is no hand."""
    return Deal(columns["game"], columns["opponent"], columns["deal"], columns["seat"])


class Hand:
    """Raises `PromptError` for a game or an opponent that there is not."""

    def __init__(self, deal: Deal) -> None:
        self._deal = deal
        self._choose = _opponent(deal.game, deal.opponent)
        self._state = load(deal.game).new_initial_state()
        told = self._play()
        order, card = ("first", "second")[deal.seat], own_rank(self._state, deal.seat)
        self.prompt = f"{DESCRIPTIONS[deal.game]}\nYou move {order}. Your card: {card}.{told}{self._question()}"

    @property
    def moves(self) -> list[str]:
        """The model's legal ones; none once the hand is over."""
        return [] if self._state.is_terminal() else list(legal_moves(self._state))

    def named(self, text: str) -> str | None:
        """The legal move that the first word of `text` names."""
        word = next(iter(text.lower().split()), "").strip(SIGNS)
        return word if word in self.moves else None

    def move(self, text: str) -> str | float:
        """Makes the move that `text` names. What the model reads next, or its chips once the hand is over."""
        word = self.named(text)
        if word is None:
            return self.forfeit()
        self._state.apply_action(legal_moves(self._state)[word])
        told = self._play()
        if self._state.is_terminal():
            return float(self._state.player_return(self._deal.seat))
        return f"\n{told.lstrip()}{self._question()}"

    def forfeit(self) -> float:
        """The chips of one who leaves the table now."""
        return -chips_in_the_pot(self._state, self._deal.seat) - FORFEIT_CHIPS

    def _question(self) -> str:
        return f" Your move ({', '.join(self.moves)}):"

    def _play(self) -> str:
        """Cards and the opponent's moves, until the model is to move or the hand is over. What it sees of them."""
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
        """The deck is shuffled once: the same cards come whatever was moved before them."""
        cards = list(deck(self._state))
        random.Random(f"{self._deal.deal} deck").shuffle(cards)
        left = {card for card, _ in self._state.chance_outcomes()}
        return next(card for card in cards if card in left)


@cache
def _opponent(game: str, name: str) -> Choose:
    rules = load(game)
    if name not in OPPONENTS:
        fix = f"choose one of: {', '.join(OPPONENTS)}"
        raise PromptError(Problem("prompts.options", f"there is no opponent {name!r}", fix))
    return OPPONENTS[name](rules)
