"""`python -m tests.faults.storm --seed N --duration S`: every role killed, stopped and restarted at random.

- Real servers, processes and signals: SIGKILL at any instant, SIGSTOP longer than a lease and then SIGCONT (the role
  comes back as a zombie that others have taken over from), a second learner, and power cuts: all at once.
- After the last kill the run must finish within a minute; then `checker` says whether every promise was kept.
- Exit code 0 only if it was, if the storm was one (`Tally.complaints`), and if nothing was seen that nobody foresaw.
  Otherwise everything that helps to find out why stays in the directory that is named.

The seed decides what is done and when; how the processes run in between is the machine's.
"""

import argparse
import gc
import heapq
import math
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import orjson

from echo_queue import doors
from echo_queue.config import Config, load
from echo_queue.errors import EchoQueueError
from echo_queue.queue import Audit, Chunk, PromptSet, Queue, QueuePolicy, Status
from echo_queue.services.connect import connect_redis, connect_store
from echo_queue.submission.opening import open_source
from echo_queue.supervisor import Role
from tests.faults import history, keeper, roles, served
from tests.faults.checker import Evidence, Link, Snapshot, Update, Verdict, judge
from tests.faults.keeper import Forked, Process

WORKERS = 3
LEASE_S = 1.0
ACTIONS_PER_S = 2.6
DRAIN_S = 60.0
PATIENCE_S = 150.0
"""How long the end is waited for, so that a slow one is told apart from one that never comes."""
BEGIN_S = 60.0
LOOK_S = (0.2, 0.5)
REAP_S = 0.5
SERVERS = {"redis": ("redis-server", "valkey-server"), "store": ("rclone",)}
KILLS = {
    "worker": 32,
    "learner": 12,
    "celery": 12,
    "submit": 9,
    "redis": 8,
    "store": 8,
    "services": 3,
    "supervisor": 3,
    "power cut": 1,
}
STOPS = {"worker": 6, "learner": 2, "celery": 1, "submit": 1, "redis": 1, "store": 1}
OTHERS = {"rival": 2.0, "rewind": 0.4, "revive": 0.6}
"""What operators do: a second learner by mistake; back to an older checkpoint; dead tasks once more."""
FORESEEN = (
    "celery: billiard.exceptions.WorkerLostError: ",
    "celery: billiard.einfo.ExceptionWithTraceback: ",
)
"""How the lines begin that Celery's pool logs when one of its processes is killed."""
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
LONG_S, KILLS_PER_S, FEWEST_KILLS_PER_S = 300.0, 1_000 / 600, 0.5
"""A storm of this length kills so often; a short one, on a machine that may be busy, at least so often."""
STRETCH_S = 60.0
"""In every stretch of this length somebody looked."""
MAKE_UP_S = 20.0
REWIND_S = 7.0
"""How long the learner is stopped for it: a rewind is refused while one is heard."""


@dataclass(frozen=True)
class Tally:
    """What a storm did and how it ended."""

    seed: int
    seconds: float
    kills: Counter[str]
    stops: Counter[str]
    done: Counter[str]
    drained_s: float | None
    """From the last kill to the run's end; None if that never came."""
    surprises: Counter[str]
    raged_s: tuple[float, float]
    """From when until when it killed, by the clock."""

    def complaints(self, snapshots_s: Sequence[float], continued: int) -> list[str]:
        """Why this was no storm, or why one was not withstood, whatever the history says.

        `continued`: tokens from which another worker went on.
        """
        began, ended = self.raged_s
        rate = KILLS_PER_S if ended - began >= LONG_S else FEWEST_KILLS_PER_S
        least = math.ceil(rate * (ended - began))
        spared = spared_by(self.kills)
        stretches = max(1, int((ended - began) / STRETCH_S))
        edges = [began + number * (ended - began) / stretches for number in range(stretches + 1)]
        unseen = [
            f"{start - began:.0f}-{end - began:.0f} s"
            for start, end in pairwise(edges)
            if not any(start <= at <= end for at in snapshots_s)
        ]
        surprises = [line for line in self.surprises if not line.startswith(FORESEEN)]
        late = self.drained_s is None or self.drained_s > DRAIN_S
        whole = ended - began >= LONG_S
        told = [
            (whole and not continued, "no worker went on where another was killed"),
            (late, f"the run was not finished within {DRAIN_S:.0f} s after the last kill"),
            (self.kills.total() < least, f"{self.kills.total()} kills are fewer than {least}"),
            (spared, f"never killed: {', '.join(spared)}"),
            (unseen, f"no snapshot in {', '.join(unseen)}"),
            (surprises, f"{len(surprises)} kinds of surprise, the first: {surprises[:1]}"),
        ]
        return [what for wrong, what in told if wrong]

    def report(self, verdict: Verdict) -> str:
        rate = verdict.trained / max(self.seconds, 1e-9)
        drained = "never" if self.drained_s is None else f"{self.drained_s:.1f} s after the last kill"
        surprises = [f"  {count:4d} × {line}" for line, count in self.surprises.most_common()]
        return "\n".join(
            [
                f"seed        {self.seed}",
                f"kills       {self.kills.total():,} in {self.seconds:.0f} s: {_counts(self.kills)}",
                f"stops       {self.stops.total():,}: {_counts(self.stops)}; {_counts(self.done)}",
                f"groups      {verdict.trained:,} trained, {rate:.0f}/s, {60 * rate:,.0f}/min",
                f"drained     {drained}",
                str(verdict),
                *(["surprises, and tracebacks in the logs", *surprises] if surprises else []),
            ]
        )


class Storm:
    """One storm in `directory`."""

    def __init__(self, directory: Path, seed: int, duration_s: float) -> None:
        self.directory, self.seed, self.duration_s = directory, seed, duration_s
        self.draw = random.Random(seed)
        self.config = configure(directory, seed)
        self.kills: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._reaped = 0.0
        self._supervisor: Forked | None = None
        self._monitor: Forked | None = None
        self._recorder = history.Recorder(directory / "history", "director")
        self._stopped: list[tuple[float, int]] = []
        self._last_kill = time.monotonic()
        self._unexpected: Counter[str] = Counter()
        self._killed_supervisor = False

    def run(self) -> tuple[Tally, Verdict]:
        try:
            return self._run()
        finally:
            self._end()

    def _run(self) -> tuple[Tally, Verdict]:
        began = time.monotonic()
        self._tend()
        self._watch()
        self._await(lambda: self._admin() is not None, BEGIN_S, "the services")
        self._declare_keel()
        self._await(lambda: (status := self._status()) is not None and status.trained > 0, BEGIN_S, "the first commit")
        raging = time.time()
        self._rage(time.monotonic() + self.duration_s)
        self._kill_the_spared()
        raged_s = (raging, time.time())
        self._calm()
        drained_s = self._drained()
        done = (self.kills, self.stops, self.done)
        tally = Tally(self.seed, time.monotonic() - began, *done, drained_s, self._surprises(), raged_s)
        return tally, judge(self._evidence())

    # Killing ----------------------------------------------------------------------------------------------------------

    def _rage(self, until: float) -> None:
        while True:
            at = time.monotonic() + self.draw.expovariate(ACTIONS_PER_S)
            if at > until:
                return
            while time.monotonic() < at:
                self._tend()
                time.sleep(0.01)
            self._act()

    def _kill_the_spared(self) -> None:
        """A short storm may have left a role out."""
        give_up = time.monotonic() + MAKE_UP_S
        while (spared := spared_by(self.kills)) and time.monotonic() < give_up:
            self._kill(spared[0], self.draw.random())
            self._tend()
            time.sleep(0.01)

    def _act(self) -> None:
        actions = (
            [("kill", role) for role in KILLS] + [("stop", role) for role in STOPS] + [(name, "") for name in OTHERS]
        )
        weights = [*KILLS.values(), *STOPS.values(), *OTHERS.values()]
        action, role = self.draw.choices(actions, weights)[0]
        lot, length_s = self.draw.random(), LEASE_S * self.draw.uniform(1.2, 2.5)
        match action:
            case "kill" if role == "power cut":
                self._cut_power()
            case "kill":
                self._kill(role, lot)
            case "stop":
                self._stop(role, lot, length_s)
            case "rival":
                self._rival()
            case "rewind":
                self._rewind()
            case "revive":
                self._revive()

    def _kill(self, role: str, lot: float) -> None:
        if (process := self._one(role, lot)) and self._signal(process, signal.SIGKILL):
            self.kills[role] += 1

    def _stop(self, role: str, lot: float, length_s: float) -> None:
        """For longer than a lease. While a learner is stopped another one takes the run over."""
        process = self._one(role, lot)
        if process is None or process.state == "T" or not self._signal(process, signal.SIGSTOP):
            return
        self.stops[role] += 1
        heapq.heappush(self._stopped, (time.monotonic() + length_s, process.pid))
        if role == "learner":
            self._rival()

    def _rival(self) -> None:
        if not any(process.name == "rival" for process in self._living()):
            keeper.fork("rival", lambda: roles.play(self.directory, ("learner", "rival")), self._log("rival"))
            self.done["rival learners"] += 1

    def _rewind(self) -> None:
        if any(process.name == "rewinder" for process in self._living()):
            return
        for process in self._living():
            if _role(process) == "learner" and self._signal(process, signal.SIGSTOP):
                heapq.heappush(self._stopped, (time.monotonic() + REWIND_S, process.pid))
        keeper.fork("rewinder", lambda: roles.play(self.directory, ("rewinder",)), self._log("rewinder"))
        self.done["rewinds"] += 1

    def _revive(self) -> None:
        with suppress(EchoQueueError), self._observed():
            if queue := self._admin():
                self.done["revived"] += queue.revive([dead.id for dead in queue.dead(3)])

    def _cut_power(self) -> None:
        """Everybody at once, the supervisor's guard included; what was being started meanwhile in a second round."""
        for _ in range(2):
            for process in self._living():
                killed = process.name != "monitor" and self._signal(process, signal.SIGKILL)
                if killed and _role(process) in KILLS:  # the guard is no role
                    self.kills[_role(process)] += 1
        self._killed_supervisor = True
        self.done["power cuts"] += 1

    def _signal(self, process: Process, number: signal.Signals) -> bool:
        """False if it was gone before."""
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
            if number == signal.SIGKILL:
                self._last_kill = time.monotonic()
                self._killed_supervisor |= process.name == "supervisor"
            self._note(number.name, process)
            return True
        return False

    def _one(self, role: str, lot: float) -> Process | None:
        found = sorted((process for process in self._living() if _role(process) == role), key=lambda each: each.pid)
        return found[int(lot * len(found))] if found else None

    def _living(self) -> list[Process]:
        return [process for process in keeper.descendants() if process.state not in "ZX"]

    def _note(self, what: str, process: Process) -> None:
        with (self.directory / "storm.jsonl").open("ab") as file:
            file.write(orjson.dumps({"t": time.time(), "what": what, **asdict(process)}) + b"\n")

    # Tending ----------------------------------------------------------------------------------------------------------

    def _tend(self) -> None:
        """A supervisor that is gone is started again, as init would; stopped roles go on when their time has come."""
        code = self._supervisor.poll() if self._supervisor else None
        if self._supervisor is None or code is not None:
            if code is not None and not self._killed_supervisor:
                self._unexpected[f"the supervisor ended by itself with {code}"] += 1
            self._killed_supervisor = False
            self._supervisor = keeper.fork(
                "supervisor", lambda: keeper.keep(self.directory, cast()), self._log("supervisor")
            )
        if self._monitor and (code := self._monitor.poll()) is not None:
            self._unexpected[f"the monitor ended by itself with {code}"] += 1
            self._watch()
        while self._stopped and self._stopped[0][0] <= time.monotonic():
            self._go_on(heapq.heappop(self._stopped)[1])
        if time.monotonic() - self._reaped > REAP_S:
            keeper.reap(frozenset(child.pid for child in (self._supervisor, self._monitor) if child))
            self._reaped = time.monotonic()

    def _watch(self) -> None:
        self._monitor = keeper.fork("monitor", lambda: monitor(self.directory), self._log("monitor"))

    def _go_on(self, pid: int) -> None:
        if any(process.pid == pid and process.state == "T" for process in self._living()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _calm(self) -> None:
        while self._stopped:
            self._go_on(heapq.heappop(self._stopped)[1])
        (self.directory / roles.CLOSING).touch()

    def _drained(self) -> float | None:
        with suppress(TimeoutError):
            self._await(lambda: (status := self._status()) is not None and status.finished, PATIENCE_S, "the end")
            return time.monotonic() - self._last_kill
        return None

    def _await(self, true: Callable[[], bool], deadline_s: float, what: str) -> None:
        give_up = time.monotonic() + deadline_s
        while not true():
            if time.monotonic() > give_up:
                raise TimeoutError(f"{what} did not come within {deadline_s:.0f} s; see {self.directory}")
            self._tend()
            time.sleep(0.05)

    def _end(self) -> None:
        """Everybody leaves in order; what does not is killed."""
        for child in (self._supervisor, self._monitor):
            if child and child.poll() is None:
                os.kill(child.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(40.0)
        for process in self._living():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    # Looking ----------------------------------------------------------------------------------------------------------

    def _admin(self) -> Queue | None:
        try:
            return Queue(connect_redis(self.config, "admin", deadline_s=0), self.config.run.name, deadline_s=1.0)
        except EchoQueueError:
            return None

    def _status(self) -> Status | None:
        try:
            queue = self._admin()
            return queue.status() if queue else None
        except EchoQueueError:
            return None

    def _declare_keel(self) -> None:
        """Its source is away until the submitter brings it, so whoever expands it meanwhile refuses it."""
        source = roles.keel_source(self.directory)
        roles.write_rows(source, 10, 0)
        prompts = roles.keel(self.directory)
        chunks: list[Chunk] = [chunk for chunk, _ in open_source(prompts.source).scan(prompts.chunk)]
        source.unlink()
        queue = self._admin()
        assert queue
        with self._observed():
            queue.configure(QueuePolicy.of(self.config))
            queue.declare(PromptSet(prompts.set, prompts.source, seed=self.config.run.seed), chunks)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """What this process does is part of the history, too."""
        doors.observer = self._recorder
        try:
            yield
        finally:
            doors.observer = None

    def _evidence(self) -> Evidence:
        from learner import checkpoint

        queue, store = self._admin(), connect_store(self.config)
        assert queue
        status = queue.status()
        stored = {stored.key for stored in store.list(checkpoint.PREFIX) if stored.key.endswith(checkpoint.MANIFEST)}
        chain = [
            Link(each.name, each.lineage, each.version, each.parent, each.trained) for each in checkpoint.history(store)
        ]
        return Evidence(
            events=history.read(self.directory / "history"),
            updates=tuple(_updates(self.config.run.dir / "metrics.jsonl")),
            chain=tuple(reversed(chain)),
            stored=frozenset(key.removeprefix(checkpoint.PREFIX).rpartition("/")[0] for key in stored),
            snapshots=tuple(_snapshots(self.directory / "snapshots.jsonl")),
            final=queue.audit(),
            dead={dead.id: dead.reason for dead in queue.dead(10**6)},
            counts=status.counts,
            s=self.config.staleness.s,
            max_attempts=self.config.queue.max_attempts,
            vocabulary=roles.VOCABULARY,
            poison=roles.is_poison,
            stamped=True,
            served=served.read(self.config.run.dir),
        )

    def _surprises(self) -> Counter[str]:
        """Last lines of the tracebacks that roles printed: what nobody foresaw."""
        found = self._unexpected.copy()
        for log in self.directory.glob("**/logs/*.log"):
            lines = log.read_text("utf-8", "replace").splitlines()
            found.update(f"{log.stem}: {line[:160]}" for line in raised(lines))
        return found

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"


def cast() -> tuple[Role, ...]:
    """The roles that the supervisor keeps, as `echo-queue run` does."""
    return (
        Role("services", ("services",), grace_s=20.0, servers=True),
        Role("celery", ("celery",), grace_s=3.0),
        Role("learner", ("learner",), grace_s=10.0, ends=True),
        *(Role(name, ("worker", name), grace_s=3.0, ends=True) for name in _workers()),
        Role("submit", ("submit",), ends=True),
    )


def configure(directory: Path, seed: int) -> Config:
    """The run of a storm; the seed draws its rules too."""
    draw = random.Random(f"rules {seed}")
    roles.make_base(directory / "base")
    program = shutil.which("redis-server") if seed % 2 else None  # else Valkey
    sections: dict[str, dict[str, object]] = {
        "run": {"name": "storm", "dir": str(directory / "run"), "seed": seed % 2**31},
        "redis": {"program": program} if program else {},
        "model": {"base": str(directory / "base"), "max_prompt_tokens": 8, "max_new_tokens": roles.LONG},
        "environment": {"kind": "interactive", "function": "tests.workers.guessing:Guessing"}
        if draw.random() < 0.5
        else {"kind": "function", "function": "tests.workers.rewards:matches_column"},
        "rollout": {
            "workers": WORKERS,
            "mode": draw.choice(("in-flight", "in-flight", "push-pull")),
            "group_size": 2,
            "concurrent_groups": 64,
            "progress_s": 0.2,
            "grace_s": 2.0,
        },
        "staleness": {
            "s": draw.choice((0, 1, 2, 4, 4)),
            "late": draw.choice(("requeue", "wait")),
            "late_deadline_s": 3.0,
        },
        "learner": {
            "batch_groups": draw.choice((128, 192, 256)),
            "checkpoint_updates": draw.choice((1, 2, 3)),
            "keep_checkpoints": draw.choice((2, 5)),
        },
        "queue": {"lease_s": LEASE_S, "max_attempts": 6, "stall_deadline_s": 40.0, "inline_max_bytes": 800},
        "submission": {"reconcile_s": 0.5, "deadline_s": 120.0},
        "telemetry": {"heartbeat_s": 0.25},
        "weights": {
            "part_bytes": 4_096,
            "chunk_bytes": 1_024,
            "anchor_every": draw.choice((2, 4, 16)),
            "skips": [2, 4],
            "encrypt": draw.random() < 0.5,
        },
    }
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {orjson.dumps(value).decode()}" for key, value in values.items())]
    (directory / "run.toml").write_text("\n".join(lines))
    return load(directory / "run.toml", {})


def monitor(directory: Path) -> int:
    """Audits, a few in a second, as often as the server answers."""
    config, queue = load(directory / "run.toml", {}), None
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(1))
    with (directory / "snapshots.jsonl").open("ab", buffering=0) as file:
        while not leaving:
            try:
                queue = queue or Queue(connect_redis(config, "monitor", deadline_s=0), config.run.name, deadline_s=0.0)
                audit = queue.audit()
                file.write(orjson.dumps({"t": time.time(), "audit": asdict(audit)}) + b"\n")
            except EchoQueueError:
                queue = None
            time.sleep(random.uniform(*LOOK_S))
    return 0


def warm_up() -> None:
    """Everything that roles import, once: children are forked with it in place."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    import boto3
    import celery.bin.worker
    import celery.concurrency.prefork
    import celery.worker.consumer
    import kombu.transport.redis
    import torch
    import transformers.models.qwen3.modeling_qwen3

    import echo_queue.submission.application
    import learner.__main__
    import learner.train
    import workers.worker

    del celery, kombu, transformers, echo_queue.submission.application, learner, workers
    torch.set_num_threads(1)
    boto3.client("s3", region_name="us-east-1", aws_access_key_id="-", aws_secret_access_key="-").close()


def _updates(path: Path) -> Iterator[Update]:
    for line in path.read_bytes().split(b"\n"):
        with suppress(orjson.JSONDecodeError):
            words = orjson.loads(line)
            lags = {int(lag): count for lag, count in words["lags"].items()}
            yield Update(words["lineage"], words["version"], tuple(words["trained_ids"]), lags, words["time_s"])


def _snapshots(path: Path) -> Iterator[Snapshot]:
    for line in path.read_bytes().split(b"\n"):
        with suppress(orjson.JSONDecodeError):
            words = orjson.loads(line)
            yield Snapshot(words["t"], Audit(**words["audit"]))


def raised(lines: Sequence[str]) -> Iterator[str]:
    """What tracebacks end with: of a chain, only the last one, which is what nobody caught."""
    inside, last = False, ""
    for line in filter(None, lines):
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and not line.startswith((" ", "\t")):
            inside, last = False, line
        elif last and not inside:
            if not line.startswith(CHAINED):
                yield last
            last = ""
    if last:
        yield last


def _workers() -> list[str]:
    return [f"worker-{number}" for number in range(1, WORKERS + 1)]


def _role(process: Process) -> str:
    """Which role a process plays. A second learner is a learner."""
    for role, names in SERVERS.items():
        if process.name in names:
            return role
    if process.name in _workers():
        return "worker"
    if process.name.startswith("python"):
        return "guard"
    return "learner" if process.name == "rival" else process.name


def spared_by(kills: Counter[str]) -> list[str]:
    """Roles that were never killed."""
    return [role for role in KILLS if role != "power cut" and not kills[role]]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common() if count)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.faults.storm", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--duration", type=float, default=600.0, help="seconds of killing")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a storm that was withstood too")
    arguments = parser.parse_args()
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    directory = Path(tempfile.mkdtemp(prefix=f"storm-{seed}-"))
    print(f"storm of {arguments.duration:.0f} s, seed {seed}, in {directory}", flush=True)
    warm_up()
    keeper.adopt()
    gc.freeze()
    try:
        tally, verdict = Storm(directory, seed, arguments.duration).run()
    except Exception:  # the run never began, or its evidence cannot be read: that is no withstood storm
        traceback.print_exc(file=sys.stdout)
        print(f"NOT WITHSTOOD: everything is in {directory}; repeat with --seed {seed}")
        return 1
    looked_s = [snapshot.time_s for snapshot in _snapshots(directory / "snapshots.jsonl")]
    complaints = tally.complaints(looked_s, verdict.continued)
    report = "\n".join([tally.report(verdict), *(f"COMPLAINT   {what}" for what in complaints)])
    (directory / "report").write_text(report)
    print(report)
    ok = verdict.ok and not complaints
    if ok and not arguments.keep:
        shutil.rmtree(directory)
    else:
        print(f"everything is in {directory}")
    print("every promise was kept" if ok else f"NOT WITHSTOOD: repeat with --seed {seed}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
