"""The same turns get the same reply, in every process."""

import random

import pytest

from tests.workers.guessing import Forgetful, Guessing
from workers.environments import Reply, Turn, sessions
from workers.environments.sessions import Sessions

SEED = 5
NUMBER = random.Random(SEED).randint(0, 99)
WRONG, RIGHT = str(NUMBER - 1), str(NUMBER)
HIGHER = Reply("higher", None)


def reply(sessions: Sessions, turn: Turn) -> Reply:
    """Replies to a turn as `child.Server` does where nothing waits."""
    call = sessions.reply(turn)
    with pytest.raises(StopIteration) as told:
        call.send(None)
    answer: Reply = told.value.value
    return answer


def turn(*completions: str, seed: int = SEED, last: bool = False, **columns: object) -> Turn:
    return Turn("guess", columns, seed, completions, last)


def test_a_session_goes_on_until_it_is_over() -> None:
    table = Sessions(game := Guessing(), max_turns=8)
    assert reply(table, turn(WRONG)) == HIGHER
    assert reply(table, turn(WRONG, WRONG)) == HIGHER
    assert reply(table, turn(WRONG, WRONG, RIGHT)) == Reply(None, 0.8)
    assert game.started == 1


def test_a_session_that_nobody_here_has_heard_is_made_again_from_its_turns() -> None:
    for asked in ((WRONG,), (WRONG, WRONG), (WRONG, RIGHT)):
        one_by_one = Sessions(Guessing(), 8)
        replies = [reply(one_by_one, turn(*asked[:count])) for count in range(1, len(asked) + 1)]
        assert reply(Sessions(Guessing(), 8), turn(*asked)) == replies[-1]


def test_the_same_turns_asked_twice_are_told_to_the_session_once() -> None:
    table = Sessions(Guessing(), 8)
    assert [reply(table, turn(WRONG)) for _ in range(3)] == [HIGHER] * 3
    assert reply(table, turn(WRONG, RIGHT)) == reply(table, turn(WRONG, RIGHT)) == Reply(None, 0.9)


def test_a_session_that_has_heard_other_turns_begins_anew() -> None:
    table = Sessions(Guessing(), 8)
    reply(table, turn(WRONG, WRONG))
    assert reply(table, turn("0", RIGHT)) == Reply(None, 0.9)


def test_seeds_and_columns_make_other_sessions() -> None:
    table = Sessions(Guessing(), 8)
    assert reply(table, turn(RIGHT, more=1)) == HIGHER
    assert reply(table, turn(RIGHT)) == Reply(None, 1.0)
    assert reply(table, turn(RIGHT, str(NUMBER + 1), more=1)) == Reply(None, 0.9)
    rewards = {reply(table, turn(RIGHT, seed=seed)).reward for seed in range(20)}
    assert None in rewards


def test_a_sample_without_room_gets_the_reward_of_an_unfinished_session() -> None:
    assert reply(Sessions(Guessing(), 8), turn(WRONG, WRONG, last=True)) == Reply(None, -0.2)
    table = Sessions(Guessing(), 8)
    reply(table, turn(WRONG, WRONG))
    assert reply(table, turn(WRONG, WRONG, last=True)) == Reply(None, -0.2)
    assert reply(table, turn(RIGHT, last=True)) == Reply(None, 1.0)


def test_a_session_ends_after_the_turns_that_it_may_have() -> None:
    table = Sessions(Guessing(), 2)
    assert reply(table, turn(WRONG)) == HIGHER
    assert reply(table, turn(WRONG, WRONG)) == Reply(None, -0.2)


def test_sessions_beyond_the_limit_make_room_and_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    table = Sessions(game := Guessing(), 8)
    for seed in range(3):
        reply(table, turn("-1", seed=seed))
    assert game.started == 3
    reply(table, turn("-1", "-1", seed=2))
    assert game.started == 3
    assert reply(table, turn("-1", "-1", seed=0)) == HIGHER
    assert game.started == 4


def test_an_environment_that_answers_otherwise_the_second_time_is_named() -> None:
    with pytest.raises(ValueError, match="depends on more than its prompt, columns, seed and turns"):
        reply(Sessions(Forgetful(), 8), turn("a", "b", "c", "d"))


def test_a_session_that_raised_is_not_gone_on_with() -> None:
    table = Sessions(game := Guessing(), 8)
    reply(table, turn(WRONG))
    with pytest.raises(RuntimeError):
        reply(table, turn(WRONG, "raise"))
    assert reply(table, turn(WRONG, WRONG)) == HIGHER
    assert game.started == 2


@pytest.mark.parametrize(("text", "reason"), [("nothing", "an empty text"), ("list", "neither a text nor a reward")])
def test_what_is_no_reply_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reply(Sessions(Guessing(), 8), turn(text))
