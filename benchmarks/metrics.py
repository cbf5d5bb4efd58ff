"""Milliseconds of processors for a scrape of `echo-queue metrics`, over HTTP, beside the queue's status alone.

    python -m benchmarks.metrics [--workers 1000] [--rounds 40] [--json]

A run with workers of eight pools that say all that a worker may, 20 updates with a mixture of eight components, and 100
deaths. The status is what `echo-queue status` asks for with each picture. Both in turns, and their medians: the time of
the processors that this process and the server used, and the time that passed, which a machine's other work changes.
The first scrape reads all reasons and results as well.
"""

import argparse
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.heartbeats import full_heartbeat
from benchmarks.verdict import conclude
from echo_queue.cli.inspect.scrape_server import Address, ScrapeServer
from echo_queue.cli.inspect.scrapes import Scrapes
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import (
    Caller,
    Chunk,
    LearnerQueue,
    Monitor,
    Operator,
    PromptSet,
    RunRules,
    SubmitterQueue,
    WorkerQueue,
    library,
)
from echo_queue.records import PromptShard, Published, Version
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.run_record import record_of
from tests.synthetic import update

if TYPE_CHECKING:
    import redis

RUN = "metrics"
MOST_MS = 50.0
WORKERS, ROUNDS = 1_000, 40
POOLS, COMPONENTS, UPDATES, DEATHS = 8, 8, 20, 100
SILENT_S = 3_600.0
ANSWER_S = 60.0


@dataclass(frozen=True)
class Figures:
    """Milliseconds of processors, and of the clock (`_passed_ms`). `first_ms`: of the first scrape.

    `ratio`: the scrape's median divided by the status'.
    """

    workers: int
    samples: int
    bytes: int
    first_ms: float
    scrape_ms: float
    status_ms: float
    ratio: float
    scrape_passed_ms: float
    status_passed_ms: float


def crowded(caller: Caller, workers: int) -> None:
    """Makes the run."""
    components = [f"c{number}" for number in range(COMPONENTS)]
    rules = RunRules(s=4, batch=DEATHS, pace=False, mixture=" ".join(f"{name}:1" for name in components))
    operator, submitter = Operator(caller), SubmitterQueue(caller)
    learner, worker = LearnerQueue(caller), WorkerQueue(caller)
    operator.configure(rules)
    version = Version(learner.resume(rules).lineage, 0)
    learner.publish(Published(version, "manifest", "digest"))
    for name in components:
        submitter.declare(PromptSet(name, "benchmark"), [Chunk(0, 0, 1_000)])
        submitter.submit(name, 0, PromptShard("shard", 0, 1_000))
    for task in worker.lease("broken", version, DEATHS).tasks:
        operator.bury(task.id, f"KeyError: 'answer of {task.id}'")
    for number in range(workers):
        said = replace(full_heartbeat(), version=version, pool=f"pool-{number % POOLS}", machine=f"m{number}")
        worker.heartbeat(f"worker-{number}", said, every_s=SILENT_S)
    figures = ComponentFigures(4, 32, 400, 0.5, 12.5, 0.1, 1)
    of_components = dict.fromkeys(components, figures)
    learner.record([record_of(update(number, components=of_components)) for number in range(1, UPDATES + 1)])
    learner.advance(0, 0, 1.0)


def measure(server: RedisServer, workers: int, rounds: int) -> Figures:
    """Returns medians over interleaved rounds."""
    with server.client() as client:
        library.load(client)
        crowded(Caller(client, RUN), workers)
        monitor = Monitor(Caller(client, RUN))
        scrapes = Scrapes(RUN, lambda: Caller(server.client(), RUN), ANSWER_S)
        served = ScrapeServer(Address("127.0.0.1", 0), None, lambda: scrapes.scrape().text)

        def scrape() -> bytes:
            with urllib.request.urlopen(f"http://{served.address}/metrics", timeout=ANSWER_S) as answer:
                text: bytes = answer.read()
                return text

        calls: dict[str, Callable[[], object]] = {"scrape": scrape, "status": monitor.status}
        (first_ms, _), text = _timed_ms(client, scrape), scrape()
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                taken[name].append(_timed_ms(client, call))
        served.close()
    median, passed = (
        {name: statistics.median(one[place] for one in each) for name, each in taken.items()} for place in (0, 1)
    )
    return Figures(
        workers=workers,
        samples=sum(not line.startswith(b"#") for line in text.splitlines()),
        bytes=len(text),
        first_ms=round(first_ms, 1),
        scrape_ms=round(median["scrape"], 1),
        status_ms=round(median["status"], 1),
        ratio=round(median["scrape"] / median["status"], 2),
        scrape_passed_ms=round(passed["scrape"], 1),
        status_passed_ms=round(passed["status"], 1),
    )


def _timed_ms(client: "redis.Redis", call: Callable[[], object]) -> tuple[float, float]:
    """Returns the milliseconds of processors that a call took, here and in the server, and those that passed."""
    server_s, own_s, begun_s = _server_s(client), time.process_time(), time.perf_counter()
    call()
    passed_s, own_s = time.perf_counter() - begun_s, time.process_time() - own_s
    return 1000 * (own_s + _server_s(client) - server_s), 1000 * passed_s


def _server_s(client: "redis.Redis") -> float:
    found = client.info("cpu")
    return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


def targets(figures: Figures) -> dict[str, bool]:
    return {
        f"a scrape at {figures.workers:,} workers takes at most {MOST_MS:.0f} ms of processors": figures.scrape_ms
        <= MOST_MS
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        server = RedisServer(Path(name))
        server.start()
        try:
            found = measure(server, arguments.workers, arguments.rounds)
        finally:
            server.stop()
    print(f"{found.samples} figures of {found.workers:,} workers in {found.bytes:,} bytes")
    print(
        f"scrape {found.scrape_ms} ms (the first {found.first_ms}), status alone {found.status_ms} ms: × {found.ratio}"
    )
    print(f"by the clock {found.scrape_passed_ms} and {found.status_passed_ms} ms")
    return conclude(found, targets(found), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
