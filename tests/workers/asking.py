"""Asks an environment one question at a time, as most of its tests do."""

import time

from workers.environments import Reply, ScoringRequest, Turn
from workers.environments.calls import Call
from workers.environments.scorer import Scorer

DEADLINE_S = 120.0


def score(scorer: Scorer, request: ScoringRequest) -> list[float]:
    return answered(scorer, Call(request)).rewards.values


def reply(scorer: Scorer, turn: Turn) -> Reply:
    return answered(scorer, Call(turn)).reply


def answered(scorer: Scorer, call: Call) -> Call:
    (ended,) = all_answered(scorer, call)
    return ended


def all_answered(scorer: Scorer, *calls: Call) -> list[Call]:
    """Asks all calls at once; returns them in the order in which they were answered."""
    for call in calls:
        scorer.ask(call)
    ended, give_up = list[Call](), time.monotonic() + DEADLINE_S
    while len(ended) < len(calls):
        assert time.monotonic() < give_up, "waited for the environment"
        ended += scorer.wait(1.0)
    return ended
