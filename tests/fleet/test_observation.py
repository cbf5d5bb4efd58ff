"""What a controller sees of a learner: whether it gets on, and whether workers are what it lacks."""

from dataclasses import replace

from echo_queue.fleet.observation import learner_of
from echo_queue.queue import RunRules, Status
from echo_queue.records import Published, Version

TRAINS = Status(
    learner=Version(1, 7), published=Published(Version(1, 6), "m", "d"), rules=RunRules(s=2, batch=4), window=1.0,
    finished=False, submitted=100, backlog=60, tasks=8, retry=0, in_flight=8, ready=1, drained=6, replay=7,
    uncommitted=4, trained=20, dead=0, learner_silent_ms=500, counts={"completed": 31}, workers=(),
)  # fmt: skip


def test_a_learner_is_heard_and_gets_on_by_what_it_trains_and_publishes_and_by_what_workers_complete() -> None:
    learner = learner_of(TRAINS, 60.0)
    assert learner.heard and learner.figures == (20, 7, 6, 31, 0, 0)
    answers = replace(TRAINS, counts={**TRAINS.counts, "answered": 5})
    assert learner_of(answers, 60.0).figures != learner.figures, "a round of evaluation is answered"
    assert not learner_of(replace(TRAINS, learner_silent_ms=90_000), 60.0).heard
    assert not learner_of(replace(TRAINS, learner_silent_ms=-1, published=None), 60.0).heard


def test_a_learner_lacks_groups_only_while_it_has_no_batch_and_there_are_tasks_to_generate() -> None:
    assert learner_of(TRAINS, 60.0).lacks_groups
    assert not learner_of(replace(TRAINS, ready=2), 60.0).lacks_groups, "it has a batch, and computes or hangs"
    waits = replace(TRAINS, tasks=0, in_flight=0)
    assert not learner_of(waits, 60.0).lacks_groups, "workers wait for it: it has published nothing that is due"
