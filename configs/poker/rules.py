"""OpenSpiel's Kuhn and Leduc games (`pyspiel`), with ranks for cards and names for moves.

Sources: Kuhn, "Simplified two-person poker", 1950; Southey et al., "Bayes' Bluff", 2005 (Leduc).
"""

from functools import cache
from typing import Any

import pyspiel

GAMES = {"kuhn": "kuhn_poker", "leduc": "leduc_poker"}
DESCRIPTIONS = {
    "kuhn": "Kuhn poker: three cards, J < Q < K, one each. Ante 1, one bet of 1.",
    "leduc": "Leduc poker: two each of J < Q < K. Ante 1. Bets of 2; after a public card is shown, of 4. A pair wins.",
}
RANKS = "JQK"
State = Any
"""A `pyspiel.State` of one of these games; OpenSpiel comes without types."""


@cache
def load(game: str) -> Any:
    """Returns a `pyspiel.Game`. Raises `ValueError` for an unknown game."""
    if game not in GAMES:
        raise ValueError(f"there is no game {game!r}; choose one of: {', '.join(GAMES)}")
    return pyspiel.load_game(GAMES[game])


def legal_moves(state: State) -> dict[str, int]:
    """Returns the legal moves of the player who is to move: their names, and OpenSpiel's numbers for them."""
    legal = state.legal_actions()
    if _is_kuhn(state):
        faces_a_bet = state.history()[2:][-1:] == [1]
        return {"fold": 0, "call": 1} if faces_a_bet else {"check": 0, "bet": 1}
    names = ("fold", "call", "raise") if 0 in legal else ("fold", "check", "bet")
    return {names[action]: action for action in legal}


def deck(state: State) -> range:
    """Returns OpenSpiel's numbers of all cards."""
    return range(len(RANKS) if _is_kuhn(state) else 2 * len(RANKS))


def rank_of(state: State, card: int) -> str:
    """Returns the rank of the card with this number."""
    return RANKS[card * len(RANKS) // len(deck(state))]


def own_rank(state: State, player: int) -> str:
    """Returns the rank of the player's own card."""
    return rank_of(state, state.history()[player])


def public_rank(state: State) -> str | None:
    """Returns the rank of the public card; None before it is shown, and in Kuhn's game."""
    if _is_kuhn(state):
        return None
    cards = len(deck(state))
    shown = state.observation_tensor(0)[2 + cards : 2 + 2 * cards]  # [player 2 | own card 6 | public card 6 | chips 2]
    return rank_of(state, shown.index(1.0)) if any(shown) else None


def chips_in_the_pot(state: State, player: int) -> float:
    """Returns the number of chips that `player` has put into the pot, ante included."""
    chips: float = state.observation_tensor(player)[player - 2]
    return chips


def _is_kuhn(state: State) -> bool:
    return bool(state.num_distinct_actions() == 2)
