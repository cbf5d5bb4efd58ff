"""The opponents: fixed strategies, whose only source of chance is the generator that they are given."""

import random
from collections.abc import Callable
from typing import Any

import pyspiel

from configs.poker.rules import State, legal_moves, own_rank, public_rank

EQUILIBRIUM_ITERATIONS = 100
"""Iterations of CFR+ (Tammelin 2014). The strategy then loses less than 0.001 chips a hand to its best opponent in
Kuhn's game, and less than 0.03 in Leduc's."""
EAGER, RELUCTANT = ("raise", "bet", "call"), ("check", "fold")

Choose = Callable[[State, random.Random], str]
"""A strategy: names a legal move of the player who is to move."""


def at_random(game: Any) -> Choose:
    """Returns a strategy that makes every legal move with the same probability."""
    return lambda state, rng: rng.choice(sorted(legal_moves(state)))


def tight(game: Any) -> Choose:
    """Returns a strategy that raises, bets or calls with a king or a pair, and checks or folds with any other card."""

    def choose(state: State, rng: random.Random) -> str:
        own = own_rank(state, state.current_player())
        wanted = EAGER if own in ("K", public_rank(state)) else RELUCTANT
        legal = legal_moves(state)
        return next(name for name in wanted if name in legal)

    return choose


def equilibrium(game: Any) -> Choose:
    """Returns a strategy near a Nash equilibrium, computed here: no opponent wins much against it in the long run."""
    solver = pyspiel.CFRPlusSolver(game)
    for _ in range(EQUILIBRIUM_ITERATIONS):
        solver.evaluate_and_update_policy()
    policy = solver.tabular_average_policy()

    def choose(state: State, rng: random.Random) -> str:
        legal, likely = legal_moves(state), policy.action_probabilities(state)
        return rng.choices(list(legal), [likely[action] for action in legal.values()])[0]

    return choose


OPPONENTS: dict[str, Callable[[Any], Choose]] = {"random": at_random, "tight": tight, "equilibrium": equilibrium}
"""The opponents by their name in `prompts.options`; each function makes the strategy for one game."""
