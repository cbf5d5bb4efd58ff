"""Every environment through the scoring process, as the worker uses it."""

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from configs.poker import Hand
from configs.poker.table import Deal
from echo_queue.config import Environment
from echo_queue.errors import ConfigError
from tests.processes import is_running
from tests.waiting import wait_until
from tests.workers import rewards
from tests.workers.asking import reply, score
from workers.environments import Reply, ScoringRequest, Turn
from workers.environments.calls import ScoringError
from workers.environments.checked_rewards import checked_rewards
from workers.environments.scorer import Scorer

REWARDS = "tests.workers.rewards"
GUESSING = "tests.workers.guessing"


@contextmanager
def scorer(**settings: Any) -> Iterator[Scorer]:
    one = Scorer(Environment(**settings))
    try:
        yield one
    finally:
        one.close()


def answers(completions: list[str], prompt: Any = "q", **columns: Any) -> ScoringRequest:
    ids, count = [[1] * len(completion) for completion in completions], len(completions)
    return ScoringRequest(prompt, completions, ids, columns, ["stop"] * count, [3] * count)


@pytest.mark.slow
def test_reasoning_gym_scores_with_its_datasets_own_scorer() -> None:
    import reasoning_gym

    options = {"size": 3, "seed": 5}
    entry = reasoning_gym.create_dataset("chain_sum", **options)[1]
    columns = {"dataset": "chain_sum", "options": options, "index": 1, "entry": entry}
    right = entry["answer"]
    completions = [right, f" {right}\n", f"well <answer>0</answer>\n<answer> {right} </answer>!", f"{right} or so", ""]
    with scorer(kind="reasoning-gym") as one:
        given = score(one, answers(completions, entry["question"], **columns))
    assert given[:3] == [1.0, 1.0, 1.0]
    assert all(reward < 1.0 for reward in given[3:])


def test_math_compares_expressions_not_text() -> None:
    completions = [r"so it is $\frac{2}{4}$", "0.5", r"\boxed{1/2}", "2", "no idea"]
    with scorer(kind="math") as one:
        assert score(one, answers(completions, answer="1/2")) == [1.0, 1.0, 1.0, 0.0, 0.0]
        assert score(one, answers([r"$x=\sqrt{8}$"], solution=r"2\sqrt{2}")) == [1.0]


def test_math_without_a_solution_is_a_failure_not_a_zero() -> None:
    with scorer(kind="math") as one:
        with pytest.raises(ScoringError, match="needs a column answer or solution"):
            score(one, answers(["1"], other="1"))
        with pytest.raises(ScoringError, match="no answer in the solution"):
            score(one, answers(["1"], answer=""))


@pytest.mark.slow
def test_a_function_gets_what_trl_gives_it() -> None:
    with scorer(kind="function", function=f"{REWARDS}:matches_column") as one:
        assert score(one, answers(["yes", "no"], wanted="yes")) == [1.0, 0.0]
    with scorer(kind="function", function=f"{REWARDS}:counts_ids") as one:
        assert score(one, answers(["a", "bcd"])) == [1.0, 3.0]
    with scorer(kind="function", function=f"{REWARDS}:reads_chat") as one:
        assert score(one, answers(["hi", "ho"], [{"role": "user", "content": "ho"}])) == [0.0, 1.0]


@pytest.fixture(scope="module")
def misbehaving() -> Iterator[Scorer]:
    """One scorer for all ways to misbehave: after each of them the next one is scored as well."""
    with scorer(kind="function", function=f"{REWARDS}:misbehaves", timeout_s=2.0) as one:
        yield one


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("raise", "RuntimeError: no such luck"),
        ("hang", "timeout_s = 2"),
        ("die", "ended with 7"),
        ("nan", "returned nan as reward 0"),
        ("none", "returned None as reward 0"),
        ("short", "given 2 completions and returned a list of length 0"),
        ("last is a text", "returned '0.4', of type str, as reward 1"),
        ("one number", "the reward function returned a float; return a list with one number per completion"),
        ("nothing", "the reward function returned None; return a list"),
        ("a text", "the reward function returned a str; return a list"),
    ],
)
def test_a_misbehaving_environment_is_a_failure_and_the_next_batch_is_scored(
    misbehaving: Scorer, completion: str, reason: str
) -> None:
    with pytest.raises(ScoringError, match=reason):
        score(misbehaving, answers([completion] * 2))
    assert score(misbehaving, answers(["well"] * 2)) == [1.0, 1.0]


def test_a_failure_names_the_place_in_the_users_module_and_no_secret(misbehaving: Scorer) -> None:
    lines = Path(rewards.__file__).read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "text.split()" in line)
    with pytest.raises(ScoringError) as told:
        score(misbehaving, answers(["nested"] * 2))
    reason = str(told.value)
    assert reason.endswith(f"has no attribute 'split' (rewards.py, line {number})")
    assert [frame.function for frame in told.value.frames] == ["misbehaves", "_first_word"]
    assert str(told.value.frames[-1]) == f"{rewards.__file__}, line {number}, in _first_word"
    with pytest.raises(ScoringError, match="no such luck") as told:
        score(misbehaving, answers(["raise"] * 2))
    assert [frame.function for frame in told.value.frames] == ["misbehaves"]
    with pytest.raises(ScoringError, match="http://…@judge") as told:
        score(misbehaving, answers(["secret"] * 2))
    assert "hunter2" not in str(told.value)
    with pytest.raises(ScoringError, match="None as reward 0") as told:
        score(misbehaving, answers(["none"] * 2))
    assert told.value.frames == (), "the check of the rewards is not the user's code"


def test_a_numpy_array_of_rewards_is_as_good_as_a_list() -> None:
    assert checked_rewards(np.array([1, 0]), 2) == [1.0, 0.0]
    assert checked_rewards((True, np.float32(0.5)), 2) == [1.0, 0.5]
    with pytest.raises(ValueError, match="returned a ndarray; return a list"):
        checked_rewards(np.array(1.0), 2)
    with pytest.raises(ValueError, match="returned a set; return a list"):
        checked_rewards({1.0, 0.0}, 2)


def guess(*completions: str) -> Turn:
    return Turn("guess", {"more": 1}, 1 << 62, completions)


@contextmanager
def guessing(**settings: Any) -> Iterator[Scorer]:
    with scorer(kind="interactive", function=f"{GUESSING}:Guessing", **settings) as one:
        yield one


def test_an_interactive_environment_replies_turn_by_turn_and_a_fresh_process_goes_on_with_a_game() -> None:
    with guessing(options={"highest": 1}) as one, guessing(options={"highest": 1}) as other:
        assert one.interactive
        first = reply(one, guess("-1"))
        assert first == Reply("higher", None)
        wrong, right = ("0", "1") if reply(one, guess("-1", "0")).reward is None else ("1", "0")
        assert reply(other, guess("-1", wrong)).observation is not None
        assert reply(one, guess("-1", wrong, right)) == reply(other, guess("-1", wrong, right)) == Reply(None, 0.8)


def test_a_poker_table_plays_the_hand_of_the_row() -> None:
    deal = Deal("leduc", "random", 4, 0)
    hand, said = Hand(deal), list[str]()
    with scorer(kind="interactive", function="configs.poker:Table") as one:
        while isinstance(told := hand.reply(" check" if "check" in hand.moves else " call"), str):
            said.append(" check" if "check" in hand.moves else " call")
            assert reply(one, Turn(hand.prompt, asdict(deal), len(said), said)) == Reply(told, None)
        assert reply(one, Turn(hand.prompt, asdict(deal), 0, [*said, "?"])) == Reply(None, hand.unfinished())
        with pytest.raises(ScoringError, match="TypeError"):
            reply(one, guess("check"))


@pytest.fixture(scope="module")
def played() -> Iterator[Scorer]:
    """One scorer for all sessions that misbehave, as a worker has one for all of its samples."""
    with guessing(timeout_s=2.0) as one:
        yield one


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise", "RuntimeError: no such luck"),
        ("hang", "timeout_s = 2"),
        ("die", "ended with 7"),
        ("nan", "returned nan as reward 0"),
        ("nothing", "an empty text"),
        ("list", "neither a text nor a reward"),
    ],
)
def test_a_session_that_misbehaves_is_a_failure_and_the_others_go_on(played: Scorer, text: str, reason: str) -> None:
    assert reply(played, guess("-1")) == Reply("higher", None)
    with pytest.raises(ScoringError, match=reason):
        reply(played, guess(text))
    assert reply(played, guess("-1", "-1")) == Reply("higher", None)


def test_turns_are_bounded_by_the_configuration() -> None:
    with guessing(max_turns=2) as one:
        assert reply(one, guess("-1", "-1")) == Reply(None, -0.2)


def test_what_is_no_environment_stops_the_worker() -> None:
    none = f"{GUESSING}:NoEnvironment"
    with scorer(kind="interactive", function=none) as one, pytest.raises(ConfigError, match="has no start"):
        one.wait_ready()
    with (
        guessing(options={"lowest": 1}) as one,
        pytest.raises(ConfigError, match="unexpected keyword argument 'lowest'"),
    ):
        one.wait_ready()


class Bomb:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def framed(message: bytes) -> str:
    return (len(message).to_bytes(8, "little") + message).hex()


@pytest.fixture(scope="module")
def talkative() -> Iterator[Scorer]:
    """One scorer for all that is said out of turn: after each of them the next batch is scored."""
    with scorer(kind="function", function=f"{REWARDS}:speaks_out_of_turn") as one:
        yield one


@pytest.mark.parametrize(
    "message",
    [
        framed(orjson.dumps([1, "Rewards", {"values": [5.0]}])),
        framed(orjson.dumps([1, "Rewards", {"values": [None, None]}])),
        framed(orjson.dumps([1, "Unfit", {"problems": [{"where": 3}]}])),
        framed(orjson.dumps([0, "Unfit", {"problems": [{"where": "x", "what": "y", "fix": "z"}]}])),
        framed(orjson.dumps([1, "Reply", {"observation": "one", "reward": 1.0}])),
        framed(orjson.dumps([1, "Reply", {"observation": None, "reward": None}])),
        framed(orjson.dumps({"no": "answer"})),
        framed(b"nonsense"),
        (1 << 62).to_bytes(8, "little").hex(),
    ],
)
def test_a_reward_function_that_speaks_for_the_scorer_is_a_failure_and_the_next_batch_is_scored(
    talkative: Scorer, message: str
) -> None:
    with pytest.raises(ScoringError, match="wrote into the scorer's pipe"):
        score(talkative, answers([message, "x"]))
    assert score(talkative, answers(["", ""])) == [1.0, 1.0]


def test_a_reward_function_cannot_run_code_in_its_worker(tmp_path: Path) -> None:
    made = tmp_path / "made-by-the-parent"
    bomb = pickle.dumps(Bomb(made))
    # As multiprocessing's connections frame it (big endian, 4 bytes), and as our own pipe does.
    for frame in (struct.pack("!i", len(bomb)) + bomb, bytes.fromhex(framed(bomb))):
        with scorer(kind="function", function=f"{REWARDS}:speaks_out_of_turn") as one, pytest.raises(ScoringError):
            score(one, answers([frame.hex(), "x"]))
        assert not made.exists()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("nowhere_at_all:f", "No module named"),
        (f"{REWARDS}:nothing", "has no nothing"),
        (f"{REWARDS}:not_a_function", "is of type int, not a function"),
    ],
)
def test_an_environment_that_cannot_be_made_stops_the_worker(function: str, reason: str) -> None:
    with scorer(kind="function", function=function) as one, pytest.raises(ConfigError, match=reason):
        one.wait_ready()


@pytest.mark.slow
def test_a_hanging_environment_dies_with_its_worker(tmp_path: Path) -> None:
    program = (
        "from echo_queue.config import Environment\n"
        "from workers.environments import ScoringRequest\n"
        "from workers.environments.scorer import Scorer\n"
        "from tests.workers.asking import score\n"
        f"one = Scorer(Environment(kind='function', function='{REWARDS}:misbehaves'))\n"
        "one.wait_ready()\n"
        "print(one.processes[0].pid, flush=True)\n"
        "score(one, ScoringRequest('q', ['hang'], [[1]], {}, ['stop'], [0]))\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    worker.kill()
    worker.communicate()
    wait_until(lambda: not is_running(child), "the end of the environment, which outlives its worker")
