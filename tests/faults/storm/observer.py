"""The observation of a storm: audits while it lasts, and the evidence when it is over."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import orjson

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError
from echo_queue.evaluation import stored
from echo_queue.evaluation.results import PromptAnswers, result_of
from echo_queue.queue import Audit, Chunk, ComponentStatus, Evaluations, PromptSet, RunRules, Status
from echo_queue.submission.sources.registry import open_source
from tests.faults.history import machines, recorder, served_versions
from tests.faults.history.checker import Evidence, Kept, KeptRow, Link, Snapshot, Update
from tests.faults.history.facts import said_by
from tests.faults.storm import fleet, prompts, simulated
from tests.queue.clients import Clients

LOOK_S = (0.2, 0.5)
SNAPSHOTS = "snapshots.jsonl"
MOST_LINES = 10_000
"""More lines about rounds of evaluation than the queue keeps of a storm."""
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


class StormObserver:
    """Asks the services of a storm, which may be away at any moment. Its own moves are part of the history, too."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory, self.config = directory, config
        self._recorder = recorder.Recorder(directory / "history", "director")

    def admin(self) -> Clients | None:
        try:
            return Clients(connect_redis(self.config, "admin", deadline_s=0), self.config.run.name, deadline_s=1.0)
        except EchoQueueError:
            return None

    def status(self) -> Status | None:
        try:
            queue = self.admin()
            return queue.status() if queue else None
        except EchoQueueError:
            return None

    @contextmanager
    def observed(self) -> Iterator[None]:
        failpoints.observer = self._recorder
        try:
            yield
        finally:
            failpoints.observer = None

    def declare_final_set(self) -> None:
        """Declares the final set. Its source is absent until the submitter writes it; until then it is refused."""
        source = prompts.final_source(self.directory)
        prompts.write_rows(source, prompts.FINAL_ROWS, 0)
        final_set = prompts.final_set(self.config, self.directory)
        chunks: list[Chunk] = [chunk for chunk, _ in open_source(final_set.source).scan(final_set.chunk)]
        source.unlink()
        queue = self.admin()
        assert queue
        with self.observed():
            queue.configure(RunRules.of(self.config))
            queue.declare(PromptSet(final_set.set, final_set.source, seed=self.config.run.seed), chunks)

    def evidence(self) -> Evidence:
        from learner.recovery import archive, checkpoint

        queue, store = self.admin(), connect_store(self.config)
        assert queue
        status = queue.status()
        chain = [
            Link(each.name, each.lineage, each.version, each.parent, each.trained) for each in checkpoint.history(store)
        ]
        return Evidence(
            events=recorder.read(self.directory / "history"),
            updates=tuple(updates(self.config.run.dir)),
            chain=tuple(reversed(chain)),
            stored=frozenset(archive.stored_names(store)),
            snapshots=tuple(snapshots(self.directory)),
            final=queue.audit(),
            dead={dead.id: dead.reason for dead in queue.dead(10**6)},
            counts=status.counts,
            s=self.config.staleness.s,
            max_attempts=self.config.queue.max_attempts,
            vocabulary=simulated.VOCABULARY,
            poison=prompts.is_poison,
            stamped=True,
            served=served_versions.read(self.config.run.dir),
            machines=machines.read(self.directory, fleet.CAPS),
            told=tuple(filter(None, map(result_of, Evaluations(queue.caller).lines(MOST_LINES)))),
            kept=tuple(results(store)),
            components=status.components,
            batch=self.config.learner.batch_groups,
        )


def results(store: ObjectStore) -> Iterator[Kept]:
    """Yields what the store has of each round of evaluation."""
    for name, version in stored.versions(store):
        result, answered = stored.read(store, name, version)
        yield Kept(result, tuple(map(_row, answered)))


def _row(answered: PromptAnswers) -> KeptRow:
    tokens = [(one.tokens, one.reward, one.finish) for one in answered.answers if one.tokens is not None]
    assert len(tokens) == len(answered.answers), "the rounds of a storm are small enough to be kept whole"
    return KeptRow(answered.index, said_by(tokens), answered.rewards, answered.reason)


def monitor(directory: Path) -> int:
    """Writes audits, a few in a second, as often as the server answers; ends at SIGTERM."""
    config, queue = load(directory / "run.toml", {}), None
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(1))
    with (directory / SNAPSHOTS).open("ab", buffering=0) as file:
        while not terminated:
            try:
                queue = queue or Clients(
                    connect_redis(config, "monitor", deadline_s=0), config.run.name, deadline_s=0.0
                )
                audit, status = queue.audit(), queue.figures()
                words = {"undone": status.counts.get("undone", 0), "components": list(map(asdict, status.components))}
                file.write(orjson.dumps({"t": time.time(), "audit": asdict(audit)} | words) + b"\n")
            except EchoQueueError:
                queue = None
            time.sleep(random.uniform(*LOOK_S))
    return 0


def updates(run: Path) -> Iterator[Update]:
    for line in (run / "metrics.jsonl").read_bytes().split(b"\n"):
        with suppress(orjson.JSONDecodeError):
            words = orjson.loads(line)
            lags = {int(lag): count for lag, count in words["lags"].items()}
            reused = [int(lag) for lag in words["reused_lags"]]
            yield Update(words["lineage"], words["version"], tuple(words["trained_ids"]), lags, words["time_s"], reused)


def snapshots(directory: Path) -> Iterator[Snapshot]:
    for line in (directory / SNAPSHOTS).read_bytes().split(b"\n"):
        with suppress(orjson.JSONDecodeError):
            words = orjson.loads(line)
            components = tuple(ComponentStatus(**one) for one in words["components"])
            yield Snapshot(words["t"], Audit(**words["audit"]), components, words["undone"])


def surprises(directory: Path) -> Counter[str]:
    """Counts the last lines of the tracebacks that roles printed."""
    found: Counter[str] = Counter()
    for folder, _, names in os.walk(directory):  # which passes over what a server removes meanwhile
        for log in (Path(folder, name) for name in names if Path(folder).name == "logs" and name.endswith(".log")):
            lines = log.read_text("utf-8", "replace").splitlines()
            found.update(f"{log.stem}: {line[:160]}" for line in raised(lines))
    return found


def raised(lines: Sequence[str]) -> Iterator[str]:
    """Yields the last line of each traceback; of a chain only the last one, which is the error that was not caught."""
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
