"""What Prometheus is told of a run agrees with its status and its audit, and stays bounded whatever workers write."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from echo_queue.errors import ServiceError
from echo_queue.queue import DeadTask, WorkerStatus
from echo_queue.queue.pool_status import pools_of
from echo_queue.queue.types import ComponentStatus
from echo_queue.records import Version
from echo_queue.reporting.figures import exposition
from echo_queue.reporting.figures.bounds import LONGEST, MOST_CAUSES, MOST_POOLS, dead_by_cause, with_few_pools
from echo_queue.reporting.figures.queue_figures import events
from echo_queue.reporting.figures.reading import RunReader
from echo_queue.reporting.figures.table import FIGURES, UP
from echo_queue.reporting.metrics import summarise
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.reporting.figures.parsed import BEAT, COMPONENT, RESULT, Family, eventful, parsed, say, scraped
from tests.synthetic import update

HOSTILE = 'a "quoted\\" name\nwith {braces="1"} 7'


def dead(number: int, reason: str) -> DeadTask:
    return DeadTask(f"a/0/{number}", 3, reason, "w1", 1)


def test_every_figure_has_its_name_its_type_and_its_meaning_and_is_there(queue: Clients) -> None:
    eventful(queue)
    found = scraped(queue)
    assert found.keys() == {figure.name for figure in FIGURES}
    for figure in FIGURES:
        family = found[figure.name]
        assert (family.kind, family.meaning) == (figure.kind, figure.meaning)
        assert family.values, figure.name
        assert {frozenset(dict(labels)) for labels in family.values} == {frozenset(figure.labels)}


def test_the_queues_figures_are_those_of_status_and_audit(queue: Clients) -> None:
    eventful(queue)
    found, status, audit = scraped(queue), queue.status(), queue.audit()
    assert found["echo_queue_up"].of() == 1
    assert sum(found["echo_queue_groups"].values.values()) == found["echo_queue_submitted_total"].of() == 40
    for place in ("backlog", "tasks", "retry", "ready", "drained", "trained", "dead"):
        assert found["echo_queue_groups"].of(place=place) == getattr(status, place)
    assert status.dead == 2 and status.trained == 2
    assert found["echo_queue_learner_version"].of() == status.learner.number == 1
    assert found["echo_queue_published_version"].of() == 1
    assert found["echo_queue_in_flight_groups"].of() == status.in_flight
    assert found["echo_queue_dead_groups"].of(cause="KeyError") == 2
    told = {dict(labels)["event"]: count for labels, count in found["echo_queue_events_total"].values.items()}
    assert told == events(status) and told["buried"] == 2 and told["late"] == 0
    assert sum(told.values()) == sum(n for name, n in status.counts.items() if name in told) and told["other"] == 0
    assert found["echo_queue_identity_ok"].of() == 1 == audit.ok
    assert found["echo_queue_identity_difference_prompts"].of() == audit.difference == 0
    assert found["echo_queue_lost_entries_total"].of() == audit.lost == 0
    for component in status.components:
        name = component.name
        assert found["echo_queue_component_weight"].of(component=name) == component.weight
        assert found["echo_queue_component_admitted_total"].of(component=name) == component.admitted
        assert found["echo_queue_component_prompts"].of(component=name, place="backlog") == component.backlog
    assert found["echo_queue_component_reward"].values == {frozenset({("component", "a")}): 0.25}
    assert status.evaluation
    assert found["echo_queue_evaluation_round_prompts"].of(state="waiting") == status.evaluation.waiting == 4


def test_an_identity_that_is_broken_is_told(queue: Clients) -> None:
    harness = QueueHarness(queue)
    harness.lease(2)
    queue.client.xtrim(queue.keys.tasks, maxlen=0, approximate=False)
    found, audit = scraped(queue), queue.audit()
    assert found["echo_queue_identity_ok"].of() == 0
    assert found["echo_queue_identity_difference_prompts"].of() == audit.difference > 0
    assert found["echo_queue_misplaced_entries"].of() == audit.misplaced


def test_the_workers_figures_are_those_of_their_pools(queue: Clients) -> None:
    eventful(queue)
    queue.heartbeat("w7", replace(BEAT, state="idle", version=Version(1, 0), judge_tokens=3), every_s=60.0)
    queue.heartbeat("w8", replace(BEAT, state="singing", version=Version(1, 0), pool=""), every_s=60.0)
    found = scraped(queue)
    pools = {pool.name: pool for pool in pools_of(queue.status().workers)}
    assert pools.keys() == {"", "l4"}
    for name, pool in pools.items():
        assert (
            sum(count for labels, count in found["echo_queue_workers"].values.items() if dict(labels)["pool"] == name)
            == pool.workers
        )
        assert found["echo_queue_machines"].of(pool=name) == pool.machines
        assert found["echo_queue_generated_tokens_per_second"].of(pool=name) == pool.tokens_per_s
        assert found["echo_queue_judge_tokens"].of(pool=name) == pool.judge_tokens
        assert found["echo_queue_scoring_seconds"].of(pool=name) == pool.scoring_s
        assert found["echo_queue_group_generation_seconds"].of(pool=name, percentile="90") == pool.generation.p90_s
        assert pool.arrival
        assert found["echo_queue_weight_arrival_seconds"].of(pool=name, percentile="100") == pool.arrival.max_s
    assert found["echo_queue_workers"].of(pool="l4", state="idle") == 1
    assert found["echo_queue_workers"].of(pool="", state="other") == 1
    assert found["echo_queue_weight_read_bytes"].of(pool="l4", source="peer") == 2 * BEAT.peer_bytes
    assert found["echo_queue_silent_workers"].of() == 1, "w2 holds tasks and has no heartbeat"
    assert found["echo_queue_machines_wanted"].of(pool="l4") == 3


def test_the_learners_figures_are_those_of_its_updates_and_results(queue: Clients) -> None:
    eventful(queue)
    found, newest = scraped(queue), update(2)
    recent = summarise([update(1), newest])
    assert found["echo_queue_updates_total"].of() == 2
    assert found["echo_queue_update_version"].of() == 2
    for name, value in {
        "update_wait_seconds": newest.wait_s,
        "update_train_seconds": newest.train_s,
        "update_save_seconds": newest.save_s,
        "broadcast_seconds": newest.t_bcast_s,
        "reward_mean": newest.reward_mean,
        "entropy_nats": newest.entropy,
        "kl_behaviour_nats": newest.kl_behaviour,
        "idle_ratio": recent.idle_share,
        "lag_mean_updates": recent.mean_lag,
        "lag_max_updates": recent.max_lag,
        "trained_tokens_per_second": recent.tokens_per_s,
        "alarm": 0,
    }.items():
        assert found[f"echo_queue_{name}"].of() == pytest.approx(value)
    assert found["echo_queue_evaluation_score"].of(evaluation="gsm8k") == RESULT.mean
    assert found["echo_queue_evaluation_interval_score"].of(evaluation="gsm8k", end="high") == RESULT.high
    assert found["echo_queue_evaluation_version"].of(evaluation="gsm8k") == 1


def test_what_is_not_known_is_not_there_and_no_zero(queue: Clients) -> None:
    QueueHarness(queue)
    found = scraped(queue)
    for name in ("reward_mean", "broadcast_seconds", "idle_ratio", "evaluation_score", "learner_silent_seconds"):
        assert f"echo_queue_{name}" not in found
    assert found["echo_queue_updates_total"].of() == 0
    say(queue, 0, 1, t_bcast_s=0.0)
    assert "echo_queue_broadcast_seconds" not in scraped(queue)


def counters(found: dict[str, Family]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (name, labels): value
        for name, family in found.items()
        if family.kind == "counter"
        for labels, value in family.values.items()
    }


def test_counters_never_fall_over_a_restart_a_rewind_and_a_revival(queue: Clients) -> None:
    harness, trained = eventful(queue)
    before = scraped(queue)
    lineage = queue.resume(Version(1, 1)).lineage
    restarted = scraped(queue)
    assert queue.uncommit(lineage, "checkpoint-1", "", [group.task for group in trained]) == 2
    queue.revive([task.id for task in queue.dead()])
    harness.check()
    rewound = scraped(queue)
    for earlier, later in ((before, restarted), (restarted, rewound)):
        told = counters(later)
        fallen = {key for key, value in counters(earlier).items() if told.get(key, 0) < value}
        assert not fallen
    assert rewound["echo_queue_events_total"].of(event="undone") == 2
    assert rewound["echo_queue_groups"].of(place="trained") == 0, "a gauge may fall"
    assert rewound["echo_queue_groups"].of(place="dead") == 0


def test_reasons_and_results_are_read_again_when_they_have_changed(queue: Clients) -> None:
    harness, _ = eventful(queue)
    reader = RunReader(queue.caller)
    assert reader.read().dead == {"KeyError": 2}
    trained = next(task for task in harness.lease(10, "w3") if task.version is None)
    queue.bury(trained.id, "ValueError: new")
    assert reader.read().dead == {"KeyError": 2, "ValueError": 1}
    number = queue.status().evaluation
    assert number
    queue.conclude(1, number.number, replace(RESULT, version=Version(1, 2), mean=0.75).line)
    assert [one.mean for one in reader.read().evaluations] == [0.75]


def test_counters_that_somebody_makes_up_are_one(queue: Clients) -> None:
    """Submitters may raise any of them by hand."""
    QueueHarness(queue)
    before = scraped(queue)["echo_queue_events_total"]
    for number in range(100):
        queue.client.hincrby(queue.keys.stats, f"made-up-{number}", 2)
    after = scraped(queue)["echo_queue_events_total"]
    assert after.values.keys() == before.values.keys()
    assert (before.of(event="other"), after.of(event="other")) == (0, 200)


def test_names_with_quotes_and_line_breaks_are_escaped(queue: Clients) -> None:
    eventful(queue)
    reading = RunReader(queue.caller).read()
    hostile = replace(
        reading,
        status=replace(
            reading.status,
            components=(ComponentStatus(HOSTILE, 1.0, 2, 3, 4),),
            workers=with_few_pools([WorkerStatus("w1", 0, replace(BEAT, pool=HOSTILE))]),
        ),
        dead={HOSTILE: 1},
        updates=(update(1, components={HOSTILE: COMPONENT}),),
        evaluations=(replace(RESULT, evaluation=HOSTILE),),
    )
    found = parsed(exposition.text(HOSTILE, hostile), HOSTILE)
    assert found["echo_queue_component_weight"].of(component=HOSTILE) == 1.0
    assert found["echo_queue_component_reward"].of(component=HOSTILE) == 0.25
    assert found["echo_queue_machines"].of(pool=HOSTILE) == 1
    assert found["echo_queue_dead_groups"].of(cause=HOSTILE) == 1
    assert found["echo_queue_evaluation_score"].of(evaluation=HOSTILE) == 0.5


def test_pools_and_causes_stay_few_whatever_is_written_and_their_sums_stay_right() -> None:
    workers = [WorkerStatus(f"w{number}", 0, replace(BEAT, pool=f"pool-{number}")) for number in range(200)]
    workers += [WorkerStatus(f"v{number}", 0, replace(BEAT, pool=f"{'x' * 500}{number}")) for number in range(2)]
    workers += [WorkerStatus("big-1", 0, replace(BEAT, pool="l4")), WorkerStatus("big-2", 0, replace(BEAT, pool="l4"))]
    pools = pools_of(with_few_pools([*workers, WorkerStatus("silent", 9, None)]))
    assert len(pools) <= MOST_POOLS + 1 and max(len(pool.name) for pool in pools) <= LONGEST
    assert sum(pool.workers for pool in pools) == 204
    assert {pool.name: pool.workers for pool in pools}["l4"] == 2
    reasons = [f"Error{number % 20}: {number}" for number in range(40)] + ["attempt 3 by w1: Rare: x", "y" * 500]
    found = dead_by_cause([dead(number, reason) for number, reason in enumerate(reasons)], 50)
    assert len(found) == MOST_CAUSES + 1 and sum(found.values()) == 50
    assert max(map(len, found)) <= LONGEST


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("attempt 3 by worker-17: the lease ran out: worker worker-17 went silent", "the lease ran out"),
        ("Traceback (most recent call last):\n  File \"x.py\", line 3, in f\n    g()\nKeyError: 'answer'", "KeyError"),
        ("by hand", "by hand"),
        ("", "no reason was given"),
    ],
)
def test_a_cause_is_what_a_reason_begins_with_and_names_no_worker(reason: str, cause: str) -> None:
    assert dead_by_cause([dead(1, reason)], 1) == {cause: 1}


def test_without_an_answer_there_is_one_figure(queue: Clients) -> None:
    assert parsed(exposition.text("r", None, up=False), "r").keys() == {UP.name}
    assert parsed(exposition.text("r", None, up=False), "r")[UP.name].of() == 0
    with pytest.raises(ServiceError, match="EQNORUN"):
        RunReader(queue.caller).read()


def test_promtool_finds_nothing_to_say(queue: Clients) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on the path: `apt-get install prometheus`")
    eventful(queue)
    text = exposition.text(queue.run, RunReader(queue.caller).read())
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
