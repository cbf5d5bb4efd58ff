"""A minute of the storm, with the session's seed; `make storm` is the long form."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from echo_queue.capacity.loading import load_fleet
from echo_queue.config import Config, Environment
from echo_queue.config.checks import contradictions
from echo_queue.fleet.controller import limits_of
from echo_queue.launch.supervisor import Role
from echo_queue.submission.needed_columns import needed_columns
from echo_queue.submission.sources.registry import open_source
from tests.faults.history.checker import judge
from tests.faults.history.machines import Machines
from tests.faults.history.test_check_evaluation import a_round
from tests.faults.history.test_check_fleet import a_fleet
from tests.faults.history.test_checker import a_good_run
from tests.faults.storm import fleet, prompts
from tests.faults.storm.forked_roles import launch
from tests.faults.storm.observer import CHAINED, raised
from tests.faults.storm.settings import HELD_OUT_ROWS, KILLS, rules
from tests.faults.storm.simulated import ParityScorer
from tests.faults.storm.summary import StormSummary, met
from tests.seed import session_seed
from tests.tiers import whole
from workers.environments.scorer import Scorer

DURATION_S, LONG_S = 60, 600
"""Seconds of killing in CI, and in `make proof`."""


SNAPSHOTS_S = [1_000.0 + second for second in range(600)]
KILLED = Counter({role: 200 for role in KILLS if role != "power cut"})
FORESEEN = (
    "celery: billiard.exceptions.WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL) Job: 2.",
    "celery: echo_queue.errors.ServiceError: store.url: http://127.0.0.1:33333: no answer for the bucket: refused",
    "celery: echo_queue.errors.ServiceError: queue of run storm: no answer within 30 s: Connection refused",
)
SHOWN = {"a rewind": 1}
SUMMARY = StormSummary(
    1, "in-flight", 604.0, KILLED, Counter(), Counter(), Counter(), 3.0, Counter(FORESEEN), (1_000.0, 1_600.0)
)
SHORT = replace(SUMMARY, injected_s=(1_000.0, 1_060.0))


def test_a_storm_with_nothing_to_complain_of() -> None:
    assert SUMMARY.complaints(SNAPSHOTS_S, SHOWN) == []


@pytest.mark.parametrize(
    ("summary", "complaint"),
    [
        (replace(SUMMARY, drained_s=None), "not finished after the last kill"),
        (replace(SUMMARY, left_behind=2), "2 stored partial rollouts were left behind"),
        (replace(SUMMARY, machines_left=1), "1 machines of the fleet were not ended"),
        (replace(SUMMARY, drained_s=61.0), "not finished within 60 s"),
        (replace(SUMMARY, kills=Counter(dict.fromkeys(KILLED, 100))), "900 kills are fewer than 1000"),
        (replace(SUMMARY, kills=KILLED - Counter(redis=200)), "never killed: redis"),
        (replace(SUMMARY, surprises=Counter({"learner: AssertionError: boom": 1})), "1 kinds of surprise"),
        (replace(SUMMARY, surprises=Counter({"the supervisor ended by itself with 1": 9})), "1 kinds of surprise"),
        (replace(SUMMARY, surprises=Counter({"the monitor ended by itself with 1": 1})), "1 kinds of surprise"),
        (
            replace(SUMMARY, surprises=Counter({"learner" + FORESEEN[1].removeprefix("celery"): 1})),
            "1 kinds of surprise",
        ),
        (replace(SUMMARY, surprises=Counter({"celery: OSError: boom": 1})), "1 kinds of surprise of Celery's"),
    ],
    ids=lambda word: word if isinstance(word, str) else "",
)
def test_a_storm_that_was_none_or_saw_what_nobody_foresaw_is_not_withstood(
    summary: StormSummary, complaint: str
) -> None:
    (told,) = summary.complaints(SNAPSHOTS_S, SHOWN)
    assert complaint in told


def test_a_long_storm_that_met_too_little_shows_too_little() -> None:
    (told,) = SUMMARY.complaints(SNAPSHOTS_S, {"a rewind": 0, "a group of several versions": 3})
    assert told == "not once a rewind"


@pytest.mark.parametrize(
    ("summary", "snapshots_s", "shown", "remark"),
    [
        (SHORT, SNAPSHOTS_S, {"a rewind": 0}, "not once a rewind"),
        (replace(SHORT, drained_s=61.0), SNAPSHOTS_S, SHOWN, "not finished within 60 s"),
        (replace(SHORT, kills=Counter(dict.fromkeys(KILLED, 3))), SNAPSHOTS_S, SHOWN, "27 kills are fewer than 30"),
        (replace(SHORT, kills=KILLED - Counter(redis=200)), SNAPSHOTS_S, SHOWN, "never killed: redis"),
        (SHORT, [], SHOWN, "no snapshot in 0-60 s"),
        (replace(SHORT, surprises=Counter({"celery: OSError: boom": 1})), SNAPSHOTS_S, SHOWN, "surprise of Celery's"),
    ],
    ids=["met too little", "drained late", "few kills", "spared", "nobody looked", "Celery"],
)
def test_what_a_short_storm_lacks_is_told_and_does_not_fail_it(
    summary: StormSummary, snapshots_s: list[float], shown: dict[str, int], remark: str
) -> None:
    assert summary.complaints(snapshots_s, shown) == []
    (told,) = summary.remarks(snapshots_s, shown)
    assert remark in told
    assert replace(summary, injected_s=SUMMARY.injected_s).remarks(snapshots_s, shown) == [], (
        "a long one is judged by it"
    )


@pytest.mark.parametrize(
    ("summary", "complaint"),
    [
        (replace(SHORT, drained_s=None), "not finished after the last kill"),
        (replace(SHORT, surprises=Counter({"learner: AssertionError: boom": 1})), "1 kinds of surprise"),
        (replace(SHORT, surprises=Counter({"the supervisor ended by itself with 1": 9})), "1 kinds of surprise"),
    ],
    ids=["never drained", "traceback", "supervisor"],
)
def test_a_short_storm_too_must_drain_and_surprise_nobody(summary: StormSummary, complaint: str) -> None:
    (told,) = summary.complaints(SNAPSHOTS_S, SHOWN)
    assert complaint in told


def test_a_storm_in_which_nobody_was_killed_is_none() -> None:
    assert "nobody was killed" in replace(SHORT, kills=Counter()).complaints(SNAPSHOTS_S, SHOWN)


def test_a_service_that_was_away_for_celery_is_listed_and_no_complaint() -> None:
    assert SHORT.complaints(SNAPSHOTS_S, SHOWN) == SHORT.remarks(SNAPSHOTS_S, SHOWN) == []
    report = SHORT.report(judge(a_good_run()))
    assert all(surprise in report for surprise in FORESEEN)


@pytest.mark.parametrize("idle", [{"routes": Counter(anchors=3)}, {"bytes": Counter(store=3)}], ids=["routes", "bytes"])
def test_a_long_storm_without_differences_or_peers_shows_too_little(
    idle: dict[str, Counter[str]], tmp_path: Path
) -> None:
    verdict = judge(a_good_run())
    assert verdict.served
    config = Config.model_validate(rules(tmp_path, 1))
    lacking = {"weights that came by a difference", "weights from a peer"}
    assert not lacking & missing(met(config, verdict, Counter()))
    assert lacking & missing(met(config, replace(verdict, served=replace(verdict.served, **idle)), Counter()))


def missing(shown: dict[str, int]) -> set[str]:
    return {what for what, often in shown.items() if not often}


def test_a_long_storm_whose_controllers_dismissed_nobody_shows_too_little(tmp_path: Path) -> None:
    config = Config.model_validate(rules(tmp_path, 1))
    idle = judge(replace(a_fleet(), machines=Machines((), Counter(), fleet.CAPS)))
    lacking = {"a machine that its controller ended"}
    assert not lacking & missing(met(config, judge(a_fleet()), Counter()))
    assert lacking & missing(met(config, idle, Counter()))


def test_a_long_storm_without_a_round_given_up_or_a_keeper_killed_shows_too_little(tmp_path: Path) -> None:
    config, verdict = Config.model_validate(rules(tmp_path, 1)), judge(a_round())
    lacking = {"a round that was given up", "a keeper that was killed"}
    assert verdict.rounds
    assert lacking & missing(met(config, verdict, Counter())) == {"a round that was given up"}
    rounds = replace(verdict.rounds, given_up=1, keepers_killed=0)
    assert lacking & missing(met(config, replace(verdict, rounds=rounds), Counter())) == {"a keeper that was killed"}


def test_a_storms_fleet_file_is_one_and_its_demand_changes(tmp_path: Path) -> None:
    supplies = set()
    for seed in range(3):
        fleet.write_file(tmp_path, random.Random(seed))
        found = load_fleet(tmp_path / fleet.FILE, date.today())
        assert limits_of(found).machines == fleet.CAPS.machines
        assert limits_of(found).usd_per_hour == fleet.CAPS.usd_per_hour
        assert {name: pool.price and pool.price.usd_per_hour for name, pool in found.pools.items()} == fleet.PRICES
        supplies.add(found.pools["cheap"].tokens_per_s[fleet.TOKENS].value)
    assert len(supplies) == 3


def test_the_seeds_draw_every_mode_and_kind_of_environment(tmp_path: Path) -> None:
    drawn = [rules(tmp_path, seed) for seed in range(60)]
    met = {(each["rollout"]["mode"], each["environment"]["kind"]) for each in drawn}
    assert met == {(mode, kind) for mode in ("in-flight", "push-pull", "pull") for kind in ("interactive", "function")}
    strict = [each["staleness"]["late"] for each in drawn if each["staleness"]["s"] == 0 and _batch(each) == 256]
    assert set(strict) == {"requeue", "wait"}, "strictly on-policy runs of the largest batches, too"


def test_no_seed_draws_rules_that_are_refused(tmp_path: Path) -> None:
    drawn = ((seed, Config.model_validate(rules(tmp_path, seed))) for seed in (105_210_503, *range(60)))
    assert {seed: found for seed, config in drawn if (found := [*contradictions(config)])} == {}


@pytest.mark.parametrize("kind", ["interactive", "function"])
def test_every_environment_can_score_the_prompts_of_a_storm(kind: str, tmp_path: Path) -> None:
    drawn = (rules(tmp_path, seed)["environment"] for seed in range(60))
    needed = needed_columns(next(Environment.model_validate(each) for each in drawn if each["kind"] == kind))
    ((_, rows),) = open_source(prompts.write_set(tmp_path, 1, 0).source).scan(10_000)
    assert len(rows) >= 300
    assert not any(needed.lacking(row) for row in rows)


def test_every_storm_evaluates_and_some_of_its_held_out_prompts_are_poison(tmp_path: Path) -> None:
    for seed in range(20):
        config = Config.model_validate(rules(tmp_path, seed))
        assert 1 <= len(config.evaluation) <= 2
        for evaluation in config.evaluation:
            prompts.write_held_out(evaluation, HELD_OUT_ROWS[0])
            ((_, rows),) = open_source(evaluation.source).scan(1_000)
            needed = needed_columns(config.environment_of(evaluation.name))
            assert not any(needed.lacking(row) for row in rows)
            poison = [row.columns["poison"] for row in rows]
            assert poison == [prompts.is_poison(f"{evaluation.name}/7/{index}") for index in range(len(rows))]
            assert 0 < sum(poison) <= 3


def test_half_of_the_storms_have_a_mixture_of_which_some_prompts_of_each_component_are_poison(tmp_path: Path) -> None:
    drawn = [Config.model_validate(rules(tmp_path, seed)) for seed in range(40)]
    mixtures = [config for config in drawn if config.mixture]
    assert 12 <= len(mixtures) <= 28 and {len(config.mixture) for config in mixtures} == {2, 3}
    for component in mixtures[0].mixture:
        prompts.write_first(component, prompts.ONE_IN_POISON)
        ((_, rows),) = open_source(component.source).scan(1_000)
        poison = [row.columns["poison"] for row in rows]
        assert poison == [prompts.is_poison(f"{component.name}/0/{index}") for index in range(len(rows))]
        assert sum(poison) == 1
    more = prompts.write_set(tmp_path, 1, 7, "kind-1")
    assert (more.set, prompts.number_of(more.set)) == ("kind-1.set-0007", 7)
    assert prompts.number_of(prompts.final_set(mixtures[0], tmp_path).set) == 0


def _batch(drawn: dict[str, dict[str, Any]]) -> object:
    return drawn["learner"]["batch_groups"]


def test_what_scores_in_a_storm_has_all_that_workers_ask_of_a_scorer() -> None:
    with closing(Scorer(Environment())) as scorer:
        asked = {name for name in dir(scorer) if not name.startswith("_")} - {"processes"}
    assert asked <= set(dir(ParityScorer(interactive=False)))


def test_a_role_that_was_being_forked_in_a_power_cut_ends_without_a_word(tmp_path: Path) -> None:
    of_nobody, guard = os.pipe()
    os.close(of_nobody)
    kept = os.dup(2)
    with (
        (tmp_path / "worker.log").open("w+b") as log,
        (tmp_path / "supervisor.log").open("w+b") as own,
        os.fdopen(guard, "wb", buffering=0) as to_guard,
    ):
        os.dup2(own.fileno(), 2)  # until its log is in place, a child writes where its parent does
        try:
            child = launch(tmp_path, Role("worker", ("worker", "w1")), {}, log, to_guard)
            assert child.wait(10.0) == -signal.SIGPIPE
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        assert (own.seek(0, os.SEEK_END), log.seek(0, os.SEEK_END)) == (0, 0)


def test_of_a_chain_of_tracebacks_the_last_counts() -> None:
    chain = ["Traceback (most recent call last):", '  File "a.py"', "OSError: gone", "", CHAINED[0] + ", another", ""]
    end = ["Traceback (most recent call last):", '  File "b.py"', "LostError: boom", "a line of log"]
    assert list(raised([*chain, *end, *end])) == ["LostError: boom", "LostError: boom"]
    assert list(raised(end[:3])) == ["LostError: boom"] and not list(raised(["a line", "of log"]))


def test_somebody_looked_in_every_stretch() -> None:
    assert SUMMARY.complaints([], SHOWN) != []
    (told,) = SUMMARY.complaints([at for at in SNAPSHOTS_S if not 1_175.0 < at < 1_245.0], SHOWN)
    assert told == "no snapshot in 180-240 s"


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_whatever_is_killed_or_stopped_nothing_is_lost_or_trained_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seed, duration_s = session_seed(), LONG_S if whole() else DURATION_S
    with capfd.disabled():
        print(f"\nstorm of {duration_s} s with seed {seed}", flush=True)
    storm = subprocess.run(
        [sys.executable, "-m", "tests.faults.storm", "--seed", str(seed), "--duration", str(duration_s)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=duration_s + 500,
        check=False,
    )
    assert storm.returncode == 0, storm.stdout
