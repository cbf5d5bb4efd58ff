"""What a scrape says, read by the official client's parser, and a run in which every figure has a value."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from echo_queue.evaluation.results import EvaluationResult
from echo_queue.queue import Heartbeat
from echo_queue.queue.generation_times import GenerationTimes
from echo_queue.records import Group, Version
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.figures import exposition
from echo_queue.reporting.figures.reading import RunReader
from echo_queue.reporting.run_record import record_of
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness
from tests.synthetic import update

BEAT = Heartbeat(
    "transformers",
    Version(0, 0),
    "generating",
    tokens_per_s=50.5,
    groups_per_s=0.5,
    published_ms=1,
    store_bytes=1_200,
    peer_bytes=3_400,
    pool="l4",
    machine="m1",
    generation=GenerationTimes.of([1.0, 2.0, 60.0]),
    scoring_s=0.25,
    unscored=3,
    judge_tokens=77,
)
RESULT = EvaluationResult("gsm8k", Version(1, 1), 1, 1, prompts=8, samples=4, mean=0.5, low=0.4, high=0.6)
COMPONENT = ComponentFigures(
    4, 32, 400, reward_mean=0.25, length_mean=12.5, truncated_fraction=0.125, zero_variance_groups=1
)


class Family(NamedTuple):
    """A figure of a scrape. `values`: by its labels but `run`."""

    kind: str
    meaning: str
    values: Mapping[frozenset[tuple[str, str]], float]

    def of(self, **labels: str) -> float:
        return self.values[frozenset(labels.items())]


def parsed(text: bytes, run: str) -> dict[str, Family]:
    """Returns the figures of a scrape by the names of their samples, each of which has the label `run`."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        (name,) = {sample.name for sample in family.samples}
        values = {}
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("run") == run
            assert values.setdefault(frozenset(labels.items()), sample.value) == sample.value
        assert len(values) == len(family.samples), "no two samples of a figure have the same labels"
        found[name] = Family(family.type, family.documentation, values)
    return found


def scraped(queue: Clients) -> dict[str, Family]:
    """Asks the queue for its figures, as a reader that was never asked before."""
    return parsed(exposition.text(queue.run, RunReader(queue.caller).read()), queue.run)


def say(queue: Clients, lineage: int, *numbers: int, **fields: object) -> None:
    """Records updates of a lineage; they go with a move that changes nothing."""
    queue.record(lineage, [record_of(update(number, lineage=lineage, **fields)) for number in numbers])
    queue.advance(lineage, queue.status().learner.number, 0, 8.0)


def eventful(queue: Clients) -> tuple[QueueHarness, tuple[Group, ...]]:
    """A run with something of everything: a mixture, updates, deaths, workers, a controller's wish, an evaluation.

    Returns what was trained as well.
    """
    harness = QueueHarness(queue, replace(RULES, s=2, mixture="a:6 b:3"), prompts=20)
    harness.submit("b", 20)
    harness.submit("held", 4, order="held_out")
    lineage = queue.resume().lineage
    harness.version = Version(lineage, 0)
    harness.publish(0)
    harness.complete(harness.lease(2))
    trained = harness.update().groups
    first, second, third, _ = harness.lease(4, "w2")
    queue.fail("w2", first.id, "Traceback: the scorer broke")
    queue.bury(second.id, "KeyError: 'answer of prompt 7'")
    queue.bury(third.id, "KeyError: 'answer of prompt 8'")
    assert queue.evaluate(lineage, harness.version, "held")
    queue.heartbeat("w1", replace(BEAT, version=harness.version), every_s=60.0)
    say(queue, lineage, 1, 2, components={"a": COMPONENT}, alarm="")
    queue.client.xadd(queue.keys.evaluations, {"line": RESULT.line})
    queue.client.hset(queue.keys.fleet_wanted, mapping={"l4": 3})
    queue.reclaim()
    harness.check()
    return harness, trained
