"""Environments of the `verifiers` package, run by the package itself (extra `verifiers`, which CI does not have)."""

from collections.abc import Iterator
from typing import Any

import pytest

from echo_queue.config import Environment
from tests.workers.asking import reply
from workers.environments import Reply, Turn
from workers.environments.calls import ScoringError
from workers.environments.scorer import Scorer

pytest.importorskip("verifiers", reason="pip install 'echo-queue[verifiers]'")
ASKED = [{"role": "user", "content": "Say the word."}]


@pytest.fixture
def scorer() -> Iterator[Scorer]:
    one = Scorer(Environment(kind="verifiers", function="tests.workers.verifiers_game:load_environment"))
    yield one
    one.close()


def turn(*completions: str, last: bool = False, seed: int = 5) -> Turn:
    columns: dict[str, Any] = {"answer": "yes"}
    return Turn(ASKED, columns, seed, completions, last)


WRONG = Reply("not no; you have heard 5\nAgain?", None)


def test_its_answers_are_observations_and_its_rubric_is_the_reward(scorer: Scorer) -> None:
    assert reply(scorer, turn("no")) == WRONG
    assert reply(scorer, turn("no", "yes")) == Reply(None, 1.0)


def test_its_own_stop_conditions_hold(scorer: Scorer) -> None:
    assert reply(scorer, turn("no", "no")) == WRONG
    assert reply(scorer, turn("no", "no", "no")) == Reply(None, -3.0)


def test_a_sample_without_room_is_scored_as_a_conversation_that_became_too_long(scorer: Scorer) -> None:
    assert reply(scorer, turn("no", "no", last=True)) == Reply(None, -2.0)


def test_what_it_raises_is_a_failure_and_other_conversations_go_on(scorer: Scorer) -> None:
    assert reply(scorer, turn("no")) == WRONG
    with pytest.raises(ScoringError, match="no such luck"):
        reply(scorer, turn("raise", seed=6))
    assert reply(scorer, turn("no", "yes")) == Reply(None, 1.0)
