"""The process of the waiting workers: all of them in one thread. Tasks whose groups are whole go to `completers`.

python -m benchmarks.scale.fleet LOAD DESCRIPTOR
"""

import gc
import os
import sys

import orjson

from benchmarks.scale.hub import Hub, take_over
from benchmarks.scale.hub_client import HubClient
from benchmarks.scale.load import Load, answer, configuration
from benchmarks.scale.waiting_worker import Complete, WaitingWorker
from echo_queue.records import Task, Version

STARTS_PER_S = 400


def handing_over(completers: int) -> Complete:
    """Returns what hands over a task: a line of JSON to this descriptor."""

    def complete(worker: str, version: Version, task: Task) -> None:
        named = [task.id, task.set, task.epoch, task.index, task.attempt]
        os.write(completers, orjson.dumps({"worker": worker, "version": [*version], "task": named}) + b"\n")

    return complete


def main() -> None:
    load, complete = Load.read(sys.argv[1]), handing_over(int(sys.argv[2]))
    hub = take_over()
    config = configuration(load.batch, load.staleness)
    started: list[WaitingWorker] = []

    def start() -> None:
        for number in range(max(1, load.workers)):
            client = HubClient(hub, load.port)
            worker = WaitingWorker(hub, client, config, name=f"worker-{number}", load=load, complete=complete)
            worker.start()
            started.append(worker)
            hub.sleep(1 / STARTS_PER_S)

    hub.spawn(start)
    hub.spawn(lambda: _answer(hub, started))
    gc.freeze()
    hub.run()


def _answer(hub: Hub, started: list[WaitingWorker]) -> None:
    """Answers each line of the parent with the number of workers started; ends the process with its input."""
    hub.watch(sys.stdin.fileno())
    while True:
        hub.wait_readable(sys.stdin.fileno())
        if not os.read(sys.stdin.fileno(), 4096):
            hub.stop()
            return
        answer({"started": len(started)})


if __name__ == "__main__":
    main()
