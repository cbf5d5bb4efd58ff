"""The cases of each role: what they set up, what the other roles do, how one process of the role runs, and the verdict.

In a case the role's process dies at a crash point, is started again, and so on. Nothing is fixed by hand before the
last process starts; after it has ended, `verdict` must hold.
"""

import os
import random
import signal
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import orjson
from safetensors.torch import load_file

from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.errors import EchoQueueError
from echo_queue.evaluation import stored
from echo_queue.evaluation.results import curves, result_of
from echo_queue.failpoints import CRASHED
from echo_queue.queue import Chunk, Evaluations, PromptSet, RunRules
from echo_queue.records import PromptRow, PromptShard, Task, Version
from echo_queue.reporting import metrics
from echo_queue.submission import shards
from echo_queue.submission.celery.app import build
from echo_queue.submission.celery.messages import send
from echo_queue.submission.sources.registry import open_source
from learner.base_model import MADE_FROM
from learner.recovery import checkpoint
from learner.recovery.rewind import choices
from tests.faults.crash_points.crashing_run import DEADLINE_S, LEASE_S, Committer, CrashHarness, InstantWorker
from tests.faults.crash_points.fork_server import RoleProcess
from tests.faults.history import served_versions
from tests.learner.selection_methods import IN_ORDER, METHODS
from tests.processes import is_running
from tests.queue.clients import Clients
from tests.seed import session_seed
from tests.waiting import wait_until

Places = tuple[str, ...]

HELD_OUT, HELD_OUT_PROMPTS = "held", 2

LOOKED_S = 5.0
"""A submitter that is to die has come to where it can by then, without Celery."""


class Case(ABC):
    """A context: what the case started ends with it."""

    role = ""

    def __init__(self, harness: CrashHarness, name: str, places: Places) -> None:
        self.harness, self.name, self.places = harness, name, places
        self.directory = harness.directory / "cases" / name
        self.directory.mkdir(parents=True)
        self.log = self.directory / "log"
        self.ends = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.ends.close()

    def prepare(self, point: str) -> None:  # noqa: B027 — most cases need nothing
        """Makes what is needed for a process to come to `point`."""

    @abstractmethod
    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        """Runs one process of the role to its end and returns its exit code."""

    @abstractmethod
    def verdict(self) -> None:
        """Asserts what must hold after the last process."""

    def told(self) -> str:
        """Returns what the case's processes have written last, which a failed test shows."""
        return self.log.read_text(errors="replace")[-6_000:] if self.log.exists() else ""


def ids(name: str, indices: range) -> list[str]:
    return sorted(f"{name}/0/{index}" for index in indices)


# The learner ----------------------------------------------------------------------------------------------------------


class LearnerCase(Case):
    """Nine prompts, the first of which no learner can train on; four updates or more, each with its checkpoint. Every
    second version, and the last one, answers two prompts that are held out.

    The session's seed draws a method of selection for each case. Old weights go only once there are newer ones than
    anybody can need: to die there takes more updates.
    """

    PROMPTS, PROMPTS_TO_PRUNE = 9, 17
    lease_s = LEASE_S
    OUTGROWN, FLAT = "set/0/1", "set/0/2"

    def __enter__(self) -> Self:
        prunes = any(place.startswith("delete weights") for place in self.places)
        self.prompts = self.PROMPTS_TO_PRUNE if prunes else self.PROMPTS
        draw = random.Random(f"{session_seed()} selection of {self.name}")
        skips = any(place.startswith("skip") for place in self.places)
        waits = "return_unfit" in self.places[:1]  # for one of the first prompts, as `prepare` does
        self.selection = "refill" if skips else draw.choice(IN_ORDER if waits else [*METHODS])
        weights = {"anchor_every": 1} if prunes else {}
        sections = {"weights": weights, "queue": {"lease_s": self.lease_s}} | METHODS[self.selection]
        held_out = {"name": HELD_OUT, "source": "made up", "every_updates": 2}
        self.config = self.harness.config(self.name, evaluation=[held_out], **sections)
        self.queue, self.store = self.harness.queue(self.config), self.harness.store(self.config)
        self._begin_run()
        return self

    def prepare(self, point: str) -> None:
        if point in ("get checkpoints", "remove model"):
            assert self.run_role("rename model") == CRASHED
        if point == "get evaluations":
            assert self.run_role("put evaluations") == CRASHED
        if point == "head base/index.json":
            assert self.run_role("put base/index.json") == CRASHED
        if point == "return_unfit":
            assert self.run_role("publish") == CRASHED
            wait_until(lambda: self._place(self.OUTGROWN) == "replay", "a group of the first lineage", told=self.told)
        if point == "uncommit":
            assert self.run_role("commit#3") == CRASHED
            newest = next(iter(checkpoint.history(self.store)))
            self.store.put(newest.keys[0], b"damaged")

    def told(self) -> str:
        return f"(selection: {self.selection})\n{super().told()}"

    def _begin_run(self) -> None:
        """Submits the prompts, and starts a worker, which ends with `ends`."""
        self.queue.configure(RunRules.of(self.config))
        self.queue.declare(PromptSet(HELD_OUT, "made up", order="held_out"), [Chunk(0, 0, HELD_OUT_PROMPTS)])
        self.queue.submit(HELD_OUT, 0, PromptShard("nowhere", 0, HELD_OUT_PROMPTS))
        self.queue.declare(PromptSet("set", "made up"), [Chunk(0, 0, self.prompts)])
        self.queue.submit("set", 0, PromptShard("nowhere", 0, self.prompts))
        outgrown = self.OUTGROWN if "return_unfit" in self.places[:1] else ""  # as `prepare` does
        flat = self.FLAT if self.config.selection.refill else ""
        self.ends.enter_context(InstantWorker(self.queue, spoiled="set/0/0", outgrown=outgrown, flat=flat))

    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        """Runs the learner with a store, and so many ranks, that the point can be reached."""
        s3 = crash_at.startswith("put once ") and "probe" not in crash_at
        role = "learner of ranks" if crash_at.startswith("send decision") else "learner of S3" if s3 else "learner"
        return self._begin(role, self.config, crash_at, record)

    def _place(self, task: str) -> str:
        return (self.queue.client.hget(self.queue.keys.open, task) or b"").split(b" ")[0].decode()

    def _begin(self, role: str, about: object, crash_at: str, record: Path | None) -> int:
        return self.harness.begin(role, about, self.log, crash_at, record).wait(DEADLINE_S)

    def verdict(self) -> None:
        audit, status = self.queue.audit(), self.queue.status()
        assert audit.ok, audit
        assert status.finished
        dead = self.queue.dead()
        assert [task.id for task in dead] == ["set/0/0"], dead
        assert sorted(checkpoint.trained_ids(self.store)) == ids("set", range(1, self.prompts))
        updates = metrics.read(self.config.run.dir / "metrics.jsonl")
        lags = [int(lag) for update in updates for lag in (*update.lags, *update.reused_lags)]
        assert max(lags) <= self.config.staleness.s
        recorded = [task for update in updates for task in update.trained_ids]
        assert sorted(recorded) == ids("set", range(1, self.prompts)), "the metrics tell another story"
        assert (self.config.run.dir / "model" / "config.json").exists()
        assert audit.evaluation == audit.scored == 0, "a round was left open"
        self._judge_rounds(max(Version(update.lineage, update.version) for update in updates))

    def _judge_rounds(self, last: Version) -> None:
        """Each round is told once; one that was answered has each of its prompts once, by its one version.

        A Redis that was lost counts rounds from 1 again, of versions of a later lineage.
        """
        told = [one for line in Evaluations(self.queue.caller).lines() if (one := result_of(line))]
        assert len(told) == len({(one.round, one.version) for one in told}), told
        answered = [one for one in told if not one.given_up]
        assert curves(answered)[HELD_OUT][-1].version.number == last.number, told
        for one in answered:
            result, rows = stored.read(self.store, one.evaluation, one.version)
            assert (result.round, result.mean) == (one.round, 1.0), told
            assert [row.index for row in rows if row.rewards == (1.0,)] == [*range(HELD_OUT_PROMPTS)], told


class RewindCase(LearnerCase):
    """A learner died after three checkpoints; an operator rewinds to the oldest that has tensors.

    To die where the queue is restored, Redis must have been lost.
    """

    def __enter__(self) -> Self:
        super().__enter__()
        assert super().run_role("commit#4") == CRASHED
        self.target = [choice.manifest.name for choice in choices(self.store) if choice.whole][-2]
        return self

    def prepare(self, point: str) -> None:
        if point == "restore":
            self.ends.close()
            self.queue.client.delete(*self.queue.client.scan_iter(self.queue.keys.prefix + "*"))
            self._begin_run()

    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        s3 = crash_at.startswith("put once ") and "probe" not in crash_at
        role = "operator of S3" if s3 else "operator"
        return self._begin(role, (self.config, self.target), crash_at, record)

    def verdict(self) -> None:
        assert super().run_role() == 0
        super().verdict()


# A rollout worker -----------------------------------------------------------------------------------------------------


BY_CHANCE = {"get partials", "delete replay"}
"""Points that need a partial rollout of another worker, which may have stored none, or none that is still wanted; or a
group that is sent although another worker was faster, which a renewal of its lease may have told before.
"""
MOST_TRIES = 3
"""Deaths until a worker leaves a partial rollout: on a busy machine it may have no token yet, or no lease any more."""


class WorkerCase(Case):
    """Six prompts: one is never scored, and one is scored only once the test lets it. Two are held out.

    Their round is asked first in one half of the cases, so that the worker dies with its tasks in hand; else in the
    midst of training. The session's seed draws the half.
    """

    role = "worker"
    PROMPTS, POISON, SLOW = 6, 4, 3

    def __enter__(self) -> Self:
        self.config = self.harness.config(
            self.name,
            model={"base": "init", "max_prompt_tokens": 16, "max_new_tokens": 3},
            rollout={"group_size": 2, "concurrent_groups": 2, "grace_s": 2.0, "progress_s": 0.1},
            staleness={"s": self.PROMPTS},  # what is held while the others are trained does not become too old
            environment={
                "kind": "function",
                "function": "tests.faults.crash_points.role_processes:reward",
                "timeout_s": 20.0,
            },
            queue={"stall_deadline_s": 20.0, "lease_s": 0.3, "max_attempts": MOST_TRIES + 3, "inline_max_bytes": 1},
            weights={"cache_max_bytes": 30_000},
            evaluation=[{"name": HELD_OUT, "source": "made up", "samples": 1}],
        )
        self.queue, self.store = self.harness.queue(self.config), self.harness.store(self.config)
        self.queue.configure(RunRules.of(self.config))
        self.store.upload_folder(self.harness.base, "base")
        kinds = {self.POISON: "poison", self.SLOW: "slow"}
        rows = [
            PromptRow("w1", {"kind": kinds.get(index, "plain"), "directory": str(self.directory)})
            for index in range(self.PROMPTS)
        ]
        self.queue.declare(PromptSet("set", "test"), [Chunk(0, 0, len(rows))])
        self.queue.submit("set", 0, shards.write(self.store, "set", 0, 0, rows))
        held_out = [PromptRow("w2", {"kind": "plain", "directory": str(self.directory)})] * HELD_OUT_PROMPTS
        self.queue.declare(PromptSet(HELD_OUT, "test", order="held_out"), [Chunk(0, 0, HELD_OUT_PROMPTS)])
        self.queue.submit(HELD_OUT, 0, shards.write(self.store, HELD_OUT, 0, 0, held_out))
        tensors = load_file(self.harness.base / "model.safetensors")
        first = random.Random(f"{session_seed()} round of {self.name}").random() < 0.5
        first = first and not BY_CHANCE.intersection(self.places)  # which concern training's tasks
        learner = Committer(
            *(self.queue, self.store, tensors, self.config),
            ghost="ghost",
            ahead=3,
            held_out=HELD_OUT,
            held_out_from=0 if first else 2,
        )
        self.committer = self.ends.enter_context(learner)
        return self

    def prepare(self, point: str) -> None:
        if point == "get partials":  # of another process
            for _ in range(MOST_TRIES):
                for gate in ("scoring", "go"):  # each of these processes is to wait for the slow reward
                    (self.directory / gate).unlink(missing_ok=True)
                assert self.run_role("progress") == CRASHED
                if any(self.queue.partial_group(task) for task in ids("set", range(self.PROMPTS))):
                    return

    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        process = self.harness.begin(self.role, self.config, self.log, crash_at, record)
        scoring, go = self.directory / "scoring", self.directory / "go"

        def ended() -> bool:
            if scoring.exists() and not go.exists():
                self._while_scoring(crash_at.partition("#")[0], process)
                go.touch()
            done = len(self.committer.trained) + len(self.queue.dead()) == self.PROMPTS
            if done and self.committer.evaluated:
                self.queue.finish(self.committer.lineage)
            return process.over.is_set()

        wait_until(ended, "the worker's end", told=self.told)
        return process.wait()

    def _while_scoring(self, point: str, process: RoleProcess) -> None:
        if point in ("release", "withdraw", "leave"):
            process.signal(signal.SIGTERM)
            wait_until(process.over.is_set, "the worker's shutdown", told=self.told)
        if point in ("progress", "put partials"):  # while it waits for the reward
            wait_until(process.over.is_set, "the worker's death", told=self.told)
        if point == "delete replay":  # another worker was faster
            shard = PromptShard("", 0, self.PROMPTS)
            task = Task(f"set/0/{self.SLOW}", "set", 0, self.SLOW, shard, 0, 0, 0, 0, 0, "", "")
            published = self.queue.published()
            assert published
            self.queue.complete("instant", [InstantWorker(self.queue).group(task, published.version)])

    def verdict(self) -> None:
        wait_until(lambda: len(self.committer.trained) == self.PROMPTS - 1, "five groups", told=self.told)
        audit = self.queue.audit()
        assert audit.ok, audit
        expected = ids("set", range(self.PROMPTS))
        expected.remove(f"set/0/{self.POISON}")
        assert sorted(checkpoint.trained_ids(self.store)) == expected
        assert [task.id for task in self.queue.dead()] == [f"set/0/{self.POISON}"]
        assert self.queue.status().finished
        seen = served_versions.read(self.config.run.dir)
        assert seen.swaps and not seen.wrong, seen
        answers = [one.group for one in self.committer.evaluated if one.group]
        assert sorted(group.index for group in answers) == [*range(HELD_OUT_PROMPTS)], self.committer.evaluated
        versions = {(group.lineage, span.version) for group in answers for one in group.samples for span in one.spans}
        assert len(versions) == 1, "a round of two versions"
        assert audit.asked == audit.concluded, "a round was left open"


# Submission -----------------------------------------------------------------------------------------------------------


class Submissions:
    """One run for all cases of a role, a set for each; whatever arrives is trained at once."""

    def __init__(self, harness: CrashHarness, name: str, helper: bool) -> None:
        self.harness = harness
        self.config = harness.config(name, prompts={"chunk": 2})
        self.queue, self.store = harness.queue(self.config), harness.store(self.config)
        self.helper = helper
        self.celery: RoleProcess | None = None
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        self.queue.configure(RunRules.of(self.config))
        tensors = load_file(self.harness.base / "model.safetensors")
        self.committer = self._ends.enter_context(Committer(self.queue, self.store, tensors, self.config))
        self._ends.enter_context(InstantWorker(self.queue))
        if self.helper:
            self.celery = self.harness.begin("celery", self.config, self.harness.directory / "celery.log")
        return self

    def __exit__(self, *_: object) -> None:
        if self.celery:
            self.celery.end()
        self._ends.close()

    def trained(self, name: str) -> list[str]:
        return sorted(task for task in list(self.committer.trained) if task.startswith(f"{name}/"))

    def case(self, name: str, places: Places) -> Case:
        return SubmitterCase(self, name, places) if self.helper else CeleryCase(self, name, places)


class SubmitterCase(Case):
    """Six prompts in three chunks. Celery's worker stands still until the submitter has looked for lost chunks."""

    role = "submitter"
    PROMPTS = 6

    def __init__(self, run: Submissions, name: str, places: Places) -> None:
        super().__init__(run.harness, name, places)
        self.run = run
        source = write_prompts(self.directory / "prompts.jsonl", self.PROMPTS)
        prompts = run.config.prompts.model_copy(update={"source": str(source)})
        self.config = run.config.model_copy(update={"prompts": prompts})

    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        celery = self.run.celery
        assert celery
        celery.signal(signal.SIGSTOP)
        try:
            process = self.harness.begin(self.role, (self.config, self.name), self.log, crash_at, record)
            process.over.wait(LOOKED_S if crash_at else 0.0)
        finally:
            celery.signal(signal.SIGCONT)
        return process.wait(DEADLINE_S)

    def verdict(self) -> None:
        expected = ids(self.name, range(self.PROMPTS))
        wait_until(lambda: len(self.run.trained(self.name)) >= len(expected), f"all of {self.name}", told=self.told)
        assert self.run.trained(self.name) == expected
        submission_status, audit = self.run.queue.submission_status(self.name), self.run.queue.audit()
        assert submission_status and submission_status.complete
        assert audit.ok, audit


class CeleryCase(Case):
    """Six prompts in three chunks, the last of which is damaged once it is declared."""

    role = "celery"
    PROMPTS, GOOD = 6, 4

    def __init__(self, run: Submissions, name: str, places: Places) -> None:
        super().__init__(run.harness, name, places)
        self.run, self._begun = run, False
        source = write_prompts(self.directory / "prompts.jsonl", self.PROMPTS)
        chunks = [chunk for chunk, _ in open_source(str(source)).scan(run.config.prompts.chunk)]
        run.queue.declare(PromptSet(name, str(source)), chunks)
        # As a submitter that died in the middle of sending: only Redis knows of the other chunks.
        send(build(run.config), name, str(source), chunks[:1])
        source.write_bytes(source.read_bytes().replace(b"prompt 5", b"prompt ?"))

    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        process = self.harness.begin(self.role, self.run.config, self.log, crash_at, record)

        def over() -> bool:
            return process.over.is_set() or self._settled()

        wait_until(over, "every chunk", told=self.told)
        # The last step may be the one to die after. The first process comes to its point as surely as alone.
        process.over.wait((0.3 if self._begun else DEADLINE_S) if crash_at else 0.0)
        self._begun = True
        return process.wait() if process.over.is_set() else min(0, process.end() + signal.SIGKILL)

    def _settled(self) -> bool:
        arrival = self.run.queue.submission_counts(self.name)
        return arrival is not None and arrival.settled

    def verdict(self) -> None:
        expected = ids(self.name, range(self.GOOD))
        wait_until(lambda: len(self.run.trained(self.name)) >= len(expected), f"all of {self.name}", told=self.told)
        assert self.run.trained(self.name) == expected
        submission_status, audit = self.run.queue.submission_status(self.name), self.run.queue.audit()
        assert (
            submission_status
            and not submission_status.waiting
            and [chunk.number for chunk in submission_status.failed] == [2]
        )
        assert audit.ok, audit


def write_prompts(path: Path, count: int) -> Path:
    path.write_bytes(b"".join(orjson.dumps({"prompt": f"prompt {index}"}) + b"\n" for index in range(count)))
    return path


# Services -------------------------------------------------------------------------------------------------------------


class ServicesCase(Case):
    """Submits a set after every start that gets so far. In every other case the servers outlive their parent."""

    role = "services"

    def __enter__(self) -> Self:
        self.config = Config.model_validate(
            {
                "run": {"name": "crash-services", "dir": self.directory / "run"},
                "model": {"base": str(self.harness.base)},
                "redis": {"program": str(self.harness.redis.program) if self.harness.redis.program else None},
                "learner": {"batch_groups": 2},
                "queue": {"lease_s": 3.0},
            }
        )
        self.acknowledged: list[str] = []
        self.processes: list[RoleProcess] = []
        self.outlive = len(self.places) > 0 and sum(map(ord, "".join(self.places))) % 2 == 0
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        super().__exit__()

    def prepare(self, point: str) -> None:
        if point == "load users":
            self.outlive = True
            assert self.run_role("rename endpoint") == CRASHED
        if point == "remove unfinished":
            self.outlive = False

    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        objects = self.config.run.dir / "services" / "store" / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        (objects / ".rclone_temp_put_left").touch()
        process = self._begin(crash_at, record)
        wait_until(lambda: process.over.is_set() or self._submits(), "services that answer", told=self.told)
        process.signal(signal.SIGTERM)
        code = process.wait(DEADLINE_S)
        if code == CRASHED and not self.outlive:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return code

    def _begin(self, crash_at: str = "", record: Path | None = None) -> RoleProcess:
        process = self.harness.begin(self.role, self.config, self.log, crash_at, record)
        self.processes.append(process)
        return process

    def _submits(self) -> bool:
        name = f"set-{len(self.acknowledged)}"
        try:
            connect_store(self.config, "admin", deadline_s=0.0)
            queue = Clients.connected_as(self.config, "admin")
            queue.declare(PromptSet(name, "made up"), [Chunk(0, 0, 3)])
            queue.submit(name, 0, PromptShard("nowhere", 0, 3))
        except (EchoQueueError, OSError):
            return False
        self.acknowledged.append(name)
        return True

    def verdict(self) -> None:
        """Everything that was ever acknowledged is there and can be trained."""
        process = self._begin()
        wait_until(lambda: process.over.is_set() or self._submits(), "services that answer", told=self.told)
        store = connect_store(self.config, "admin")
        queue = Clients.connected_as(self.config, "admin", store)
        tensors = load_file(self.harness.base / "model.safetensors")
        expected = sorted(task for name in self.acknowledged for task in ids(name, range(3)))
        with Committer(queue, store, tensors, self.config) as committer, InstantWorker(queue):
            wait_until(lambda: len(committer.trained) >= len(expected), "all groups", told=self.told)
        assert sorted(checkpoint.trained_ids(store)) == expected
        audit = queue.audit()
        assert audit.ok and audit.trained == len(expected), audit
        process.signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


# The supervisor, and the base model -----------------------------------------------------------------------------------


class SupervisorCase(Case):
    role = "supervisor"

    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        code = self.harness.begin(self.role, self.directory, self.log, crash_at, record).wait(DEADLINE_S)
        wait_until(lambda: not any(map(is_running, self._started())), "the end of what was started", told=self.told)
        return code

    def verdict(self) -> None:
        assert (self.directory / "over").exists()

    def _started(self) -> list[int]:
        noted = self.directory / "pids"
        return [int(line) for line in noted.read_text().split()] if noted.exists() else []


class LauncherCase(SupervisorCase):
    """A launcher that dies takes its ranks along, as a supervisor takes its roles."""

    role = "launcher"


class BaseModelCase(Case):
    role = "base model"

    def __enter__(self) -> Self:
        self.config = self._config(seed=0)
        return self

    def _config(self, seed: int) -> Config:
        init = {"hidden": 16, "layers": 1, "warmup_steps": 1, "warmup_prompts": 8, "warmup_batch": 2}
        return Config.model_validate(
            {
                "run": {"name": "crash-base", "dir": self.directory / "run", "seed": seed},
                "model": {"base": "init", "init": init},
                "prompts": {"source": "reasoning-gym:chain_sum", "options": {"size": 8, "seed": 1}},
            }
        )

    def prepare(self, point: str) -> None:
        if point == "set base aside":
            assert self.harness.begin(self.role, self._config(seed=1), self.log).wait(DEADLINE_S) == 0

    def run_role(self, crash_at: str = "", record: Path | None = None) -> int:
        return self.harness.begin(self.role, self.config, self.log, crash_at, record).wait(DEADLINE_S)

    def verdict(self) -> None:
        folder = Path(self.config.base_model)
        assert orjson.loads((folder / MADE_FROM).read_bytes())["seed"] == 0
        assert load_file(folder / "model.safetensors")
