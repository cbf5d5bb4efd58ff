"""One run whose prompts are poisoned: started, fed for as long as it is to last, awaited, and judged.

It evaluates a held-out set as well, half of which is poison to an environment of its own: only these prompts fail.
One of its workers is a stranger of which every group is bad: it must be suspended, and cost no prompt its life.
"""

import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from echo_queue.cli.inspect.live.watcher import monitor
from echo_queue.config import toml_text
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_store
from echo_queue.errors import DONE, HOPELESS, EchoQueueError
from echo_queue.evaluation import stored
from echo_queue.evaluation.results import PromptAnswers
from echo_queue.launch.servers.serving import Services
from echo_queue.queue import PromptSet, Status, SubmitterQueue
from echo_queue.queue.reasons import in_one_line
from echo_queue.queue.types import DeadTask
from echo_queue.submission import shards
from echo_queue.submission.expand import expand
from echo_queue.submission.sources.registry import open_source
from learner.recovery.checkpoint import trained_ids
from tests.faults.poison import misbehaving, model, poisons
from tests.learner.learner_harness import SimulatedWorker
from tests.processes import processes_with

SET_ROWS, LEAST_BACKLOG = 96, 32
"""The prompts of a set, and the backlog below which another set is submitted."""
FIRST, FIRST_ROWS = "first", 32
"""The configured set has good prompts alone: a run whose first prompts all die is ended early, on purpose."""
HELD_OUT = "held-out"
WORKERS = 2
STRANGER, BEYOND_ANY_MODEL = "stranger", 10**6
SUSPENDED = r"groups in a row could not be trained; the last: .*outside the model's vocabulary"
"""What must be told of the worker whose tokens are another model's."""
SUSPENDED_S = 120.0
"""The longest that a storm goes on until that worker is suspended."""
BEGIN_S, END_S = 180.0, 600.0
GONE_S = 20.0
POLL_S = 0.1
MARK = "ECHO_QUEUE_TEST_POISON"
"""A variable that all processes of one run inherit, and by which those that it left behind are found."""


@dataclass
class Verdict:
    """What became of the prompts and processes of one run."""

    kind: str
    good: int = 0
    poisoned: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        dead = ", ".join(f"{count} {name}" for name, count in sorted(self.poisoned.items()))
        lines = [f"{self.kind}: {self.good} good prompts, {self.poisoned.total()} poisoned ({dead})"]
        return "\n".join([*lines, *(f"  FAULT  {what}" for what in self.faults)])


class PoisonStorm:
    """One run in `directory`, with the environment `kind`: "function" or "interactive"."""

    def __init__(self, directory: Path, seed: int, kind: str) -> None:
        self._draw = random.Random(f"{kind} {seed}")
        self._directory, self._kind = directory, kind
        self._mark = secrets.token_hex(8)
        self._rows: dict[str, list[str]] = {}
        """The poison of each row of each set that was submitted."""
        directory.mkdir(parents=True)
        shutil.copy(misbehaving.__file__, directory / "misbehaving.py")
        base = model.make(directory / "base", seed % 2**31)
        self._write(FIRST, [{"prompt": f"{number} + 1 =", "poison": poisons.GOOD} for number in range(FIRST_ROWS)])
        self._held_out = poisons.held_out(kind, self._draw)
        held_out = directory / f"{HELD_OUT}.jsonl"
        held_out.write_bytes(b"".join(map(_line, self._held_out)))
        path = directory / "run.toml"
        path.write_text(toml_text.written(rules(directory, base, kind, held_out)))
        self.config = load(path, {})

    def run(self, duration_s: float) -> Verdict:
        """Runs the storm and returns the verdict. Raises `TimeoutError` for a run that never begins."""
        with (self._directory / "output").open("wb") as output:
            run = subprocess.Popen(
                [sys.executable, "-m", "echo_queue.cli", "run", str(self._directory / "run.toml")],
                cwd=self._directory,
                env={**os.environ, MARK: self._mark},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self._feed(run, time.monotonic() + duration_s)
            code = run.wait(END_S)
        finally:
            if run.poll() is None:
                run.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    run.wait(END_S)
                run.kill()
        return self._judge(code)

    def _feed(self, run: "subprocess.Popen[bytes]", until: float) -> None:
        """Submits sets until then, at least one, while a stranger works, until this one is suspended."""
        if not self._training(run):
            return
        stranger = SimulatedWorker(self.config, STRANGER, generation_s=0.05, vocabulary=BEYOND_ANY_MODEL)
        stranger.start()
        try:
            self._keep_submitting(run, until)
        finally:
            stranger.close()

    def _keep_submitting(self, run: "subprocess.Popen[bytes]", until: float) -> None:
        """Submits another set before the backlog is empty, which ends the run."""
        queue, store = SubmitterQueue.connect(self.config), connect_store(self.config, "celery")
        self._submit(queue, store)
        suspended = False
        while run.poll() is None and time.monotonic() < until + (0.0 if suspended else SUSPENDED_S):
            if status := self._status():
                suspended = any(worker.suspended for worker in status.workers)
                if status.backlog < LEAST_BACKLOG:
                    self._submit(queue, store)
            time.sleep(POLL_S)

    def _training(self, run: "subprocess.Popen[bytes]") -> bool:
        """Returns True once a worker holds tasks; False if the run has ended instead."""
        give_up = time.monotonic() + BEGIN_S
        while time.monotonic() < give_up:
            if run.poll() is not None:
                return False
            if (status := self._status()) and status.in_flight:
                return True
            time.sleep(POLL_S)
        raise TimeoutError(f"the run did not begin within {BEGIN_S:.0f} s; see {self._directory}")

    def _submit(self, queue: SubmitterQueue, store: shards.Writes) -> None:
        """Submits a set of one chunk, as a submitter without the model's files, who can check no prompt by them."""
        name = f"set-{len(self._rows):03d}"
        source = open_source(str(self._write(name, poisons.rows(self._kind, self._draw, SET_ROWS))))
        ((chunk, _),) = source.scan(SET_ROWS)
        queue.declare(PromptSet(name, source.name), [chunk])
        if not expand(queue, store, None, name, chunk.number):
            raise ValueError(f"set {name} was refused")

    def _write(self, name: str, rows: list[dict[str, object]]) -> Path:
        path = self._directory / f"{name}.jsonl"
        path.write_bytes(b"".join(map(_line, rows)))
        self._rows[name] = [str(row["poison"]) for row in rows]
        return path

    def _status(self) -> Status | None:
        try:
            return monitor(self.config).status()
        except (EchoQueueError, OSError):
            return None

    def _judge(self, code: int) -> Verdict:
        verdict = Verdict(self._kind)
        left = self._left_behind()
        services = Services(self.config)
        services.start()
        try:
            queue = monitor(self.config)
            store = connect_store(self.config)
            trained = Counter(trained_ids(store))
            evaluated = [stored.read(store, name, version) for name, version in stored.versions(store)]
            dead = {task.id: task for task in queue.dead(1_000_000)}
            audit = queue.audit()
            told = {worker.name: worker.suspended for worker in queue.status().workers}
        finally:
            services.stop()
        for name, rows in self._rows.items():
            for index, poison in enumerate(rows):
                self._judge_prompt(verdict, f"{name}/0/{index}", poison, trained, dead)
        verdict.faults += [] if evaluated else ["no version was evaluated"]
        for result, answered in evaluated:
            verdict.faults += self._judge_round(str(result), answered)
        expected = HOPELESS if verdict.poisoned else DONE
        right = {name: bool(re.search(SUSPENDED, why)) for name, why in told.items() if why} == {STRANGER: True}
        verdict.faults += [] if right else [f"{STRANGER} must be suspended, with its reason, and nobody else: {told}"]
        verdict.faults += [f"{left} processes are left"] if left else []
        verdict.faults += [] if audit.ok else [f"the identity is broken: {audit}"]
        verdict.faults += [] if code == expected else [f"the run ended with {code}, not with {expected}"]
        verdict.faults += [f"{name} was started {often} times" for name, often in self._starts() if often != 1]
        return verdict

    def _judge_prompt(
        self, verdict: Verdict, task: str, poison: str, trained: Counter[str], dead: dict[str, DeadTask]
    ) -> None:
        reasons = poisons.of_kind(self._kind)
        if poison not in reasons:
            verdict.good += 1
            if trained[task] != 1 or task in dead:
                reason = in_one_line(dead[task].reason) if task in dead else "not dead"
                verdict.faults.append(
                    f"{task}, good ({poison or 'plain'}), was trained {trained[task]} times: {reason}"
                )
            return
        verdict.poisoned[poison] += 1
        if task not in dead or trained[task]:
            verdict.faults.append(f"{task}, which {poison}, was trained {trained[task]} times and is not dead")
        elif not re.search(reasons[poison], dead[task].reason):
            why = in_one_line(dead[task].reason)
            verdict.faults.append(f"{task}, which {poison}, is dead of another reason: {why}")

    def _judge_round(self, told: str, answered: Sequence[PromptAnswers]) -> Iterator[str]:
        """Yields what is wrong with a round: its good prompts are answered, and every other failed, for its reason."""
        reasons, by_index = poisons.of_kind(self._kind), {one.index: one for one in answered}
        for index, row in enumerate(self._held_out):
            poison, one = str(row["poison"]), by_index.get(index)
            if one is None:
                yield f"{told}: prompt {index} is lost"
            elif bool(poison) == bool(one.answers) or not re.search(reasons.get(poison, ""), one.reason):
                why = in_one_line(one.reason) or "it was answered"
                yield f"{told}: prompt {index} ({poison or 'good'}): {why}"

    def _left_behind(self) -> int:
        """Returns the number of processes that outlive the run."""
        give_up = time.monotonic() + GONE_S
        while (left := list(processes_with(MARK, self._mark))) and time.monotonic() < give_up:
            time.sleep(POLL_S)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)

    def _starts(self) -> list[tuple[str, int]]:
        """Returns how often each worker was started, by the first lines that its log has."""
        logs = [self.config.run.dir / "logs" / f"worker-{number + 1}.log" for number in range(WORKERS)]
        return [(log.stem, len(re.findall(STARTED, log.read_text(errors="replace"), re.MULTILINE))) for log in logs]


STARTED = r"^── "
"""The line that the supervisor writes into a role's log each time that it starts the role."""


def _line(row: dict[str, object]) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def rules(directory: Path, base: Path, kind: str, held_out: Path) -> dict[str, Any]:
    """Returns the configuration, section by section."""
    function = "misbehaving:reward" if kind == "function" else "misbehaving:Environment"
    return {
        "run": {"name": f"poison-{kind}", "dir": str(directory / "run")},
        "model": {"base": str(base), "max_prompt_tokens": 32, "max_new_tokens": 24},
        "prompts": {"set": FIRST, "source": str(directory / f"{FIRST}.jsonl")},
        "environment": {"kind": kind, "function": function, "timeout_s": 1.5},
        "rollout": {"workers": WORKERS, "group_size": 2, "concurrent_groups": 8, "progress_s": 0.2},
        "staleness": {"s": 4},
        "queue": {"lease_s": 10.0, "max_attempts": 2},
        "learner": {"batch_groups": 8, "lr": 1e-4, "checkpoint_updates": 5},
        "submission": {"reconcile_s": 60.0},
        "evaluation": [
            {
                "name": HELD_OUT,
                "source": str(held_out),
                "samples": 2,  # as many as the stranger sends
                "every_updates": 0,
                "environment": {"kind": kind, "function": function, "timeout_s": 1.0},
            }
        ],
    }
