"""What the corners through the real queue are made of, by hand. The runs themselves are the benchmark's."""

from pathlib import Path

import orjson
import pytest

from benchmarks.stability import SYMBOLS, Setting
from benchmarks.stability_corners import (
    CONFIG,
    End,
    Pair,
    corner_of,
    forced,
    lag_of,
    right_places,
    table,
    tokenizer,
    write_prompts,
)
from echo_queue.config.loading import load

SETTING = Setting("dppo", "sort", 4, 1, 0, 8, 1e-3, "warn")


@pytest.mark.parametrize(
    ("kappa", "lags"), [(1, [0, 1, 2, 3, 4, 4, 4, 4, 4]), (4, [0, 1, 2, 3, 4, 1, 2, 3, 4])], ids=["κ = 1", "κ = S"]
)
def test_the_forced_lag_by_hand(kappa: int, lags: list[int]) -> None:
    assert [lag_of(version, SETTING._replace(kappa=kappa)) for version in range(9)] == lags


def test_the_forced_lag_is_the_one_that_the_harness_has(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    groups_of = forced.__globals__["stability"].groups_of

    def noting(engine, task, version, draw):  # type: ignore[no-untyped-def]
        seen.append(version)
        return groups_of(engine, task, version, draw)

    monkeypatch.setattr("benchmarks.stability.groups_of", noting)
    setting = SETTING._replace(s=2, kappa=2, updates=6)
    end = forced(setting)
    assert [number - version for number, version in enumerate(seen)] == [lag_of(n, setting) for n in range(6)]
    assert end.lag == sum(lag_of(n, setting) for n in range(6)) / 6


def test_prompts_have_a_token_for_each_symbol_and_their_answers(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", SETTING)
    lines = [orjson.loads(line) for line in (tmp_path / "prompts.jsonl").read_bytes().splitlines()]
    assert len(lines) == 64, "8 groups in each of 8 updates"
    assert all("".join(sorted(line["prompt"][:-1])) == line["answer"] for line in lines)
    tokens = tokenizer().encode("bca=")
    assert tokens == [1, 2, 0, SYMBOLS]
    assert tokenizer().decode(tokens) == "bca="


def test_the_reward_is_the_share_of_right_places() -> None:
    assert right_places(["", "", ""], ["abc", "bbc", "b"], answer=["abc", "abc", "abc"]) == [1.0, 2 / 3, 0.0]


def test_ends_within_three_points_or_two_errors_agree() -> None:
    def pair(seed: int, by_force: float, by_queue: float) -> Pair:
        return Pair("copy", 64, 1, seed, End(60.0, by_force, 0.5), End(58.0, by_queue, 0.6))

    one = corner_of([pair(0, 0.9, 0.92), pair(1, 0.9, 0.92)])
    assert (one.pairs, round(one.apart, 3), one.agrees) == (2, 2.0, True)
    assert not corner_of([pair(0, 0.9, 0.85), pair(1, 0.9, 0.85)]).agrees
    assert corner_of([pair(0, 0.9, 0.85), pair(1, 0.9, 0.91)]).agrees, "the error is 3 points"
    assert table([one]).splitlines()[-1] == ("| 64 | 1 | 2 | 60.0 / 58.0 | 0.500 / 0.600 | 0.900 / 0.920 | 2.0 ± 0.0 |")


def test_its_configuration_is_one() -> None:
    config = load(CONFIG, {})
    assert not config.staleness.pace and config.environment.kind == "function"
