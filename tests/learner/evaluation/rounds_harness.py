"""A harness for rounds of evaluation: the queue's, with a learner whose housekeeper observes when a test says so."""

from pathlib import Path
from typing import Any

from echo_queue.config import Config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.evaluation.results import EvaluationResult, result_of
from echo_queue.queue import Evaluations, Heartbeat, Outcome, RunRules
from echo_queue.records import Group, Task, Version
from echo_queue.reporting.evaluation_record import FILE
from learner.evaluation.rounds import EvaluationRounds
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, group_of

RULES = RunRules(s=4, batch=2, lease_ms=60_000, max_attempts=3, pace=False)
HELD, VOCABULARY, DEADLINE_S = 6, 16, 300.0


class RoundsHarness(QueueHarness):
    """A run with the held-out set "held", worker "w1" at the base version, and the learner of lineage 1."""

    def __init__(self, queue: Clients, store: ObjectStore, directory: Path, *, submitted: bool = True) -> None:
        super().__init__(queue, RULES, prompts=0)
        self.store, self.directory = store, directory
        self.now_s = 1_000.0
        if submitted:
            self.submit("held", HELD, order="held_out")
        self.start()

    def config(self, *more: dict[str, Any], **held: Any) -> Config:
        """Returns a configuration with the evaluation "held", changed as told, and with more of them."""
        return Config.model_validate(
            {
                "run": {"name": "t", "dir": str(self.directory)},
                "queue": {"stall_deadline_s": DEADLINE_S},
                "evaluation": [{"name": "held", "source": "held.jsonl", "samples": 2} | held, *more],
            }
        )

    def start(self, number: int = 0, config: Config | None = None) -> EvaluationRounds:
        """Begins a lineage at a checkpoint of this number, and publishes its first version."""
        begin = Version(self.version.lineage, number) if number else Version(0, 0)
        lineage = self.queue.resume(begin).lineage
        self.version = Version(lineage, number)
        caller = self.queue.caller
        self.rounds = EvaluationRounds(
            config or self.config(),
            caller,
            self.store,
            vocabulary=VOCABULARY,
            begun=self.version,
            clock=lambda: self.now_s,
        )
        self.publish(number)
        return self.rounds

    def update_to(self, number: int) -> None:
        """Makes versions up to `number`, and publishes the last one."""
        while self.learner_version < number:
            self.advance(0)
        self.publish(number)

    def serve(self, worker: str = "w1", version: Version | None = None) -> None:
        """Lets a worker say that it serves a version, by default the published one."""
        self.queue.heartbeat(worker, Heartbeat("made up", version or self.version, "generating"))

    def look(self, seconds: float = 1.0) -> None:
        """Lets the housekeeper observe the run once, so many seconds after it did so last."""
        self.now_s += seconds
        self.rounds.observe(self.queue.status())

    def answer(self, worker: str = "w1", most: int = 1_000) -> list[Outcome]:
        """Lets a worker answer what is asked of the version that it serves."""
        heartbeat = next(one.heartbeat for one in self.queue.status().workers if one.name == worker)
        assert heartbeat
        tasks = self.lease(most, worker, heartbeat.version)
        outcomes = self.queue.complete(worker, [self.group(task, worker) for task in tasks if task.version])
        self.check()
        return outcomes

    def group(self, task: Task, worker: str) -> Group:
        assert task.version
        return group_of(task, worker, task.version)

    def evaluate(self) -> None:
        """Has the published version evaluated, which must be due."""
        self.serve()
        self.look()
        assert self.answer()
        self.look()

    @property
    def asked(self) -> Version | None:
        """The version that is being evaluated."""
        under_way = self.queue.status().evaluation
        return under_way.version if under_way else None

    @property
    def told(self) -> list[EvaluationResult]:
        """The results in Redis."""
        return [found for line in Evaluations(self.queue.caller).lines() if (found := result_of(line))]

    @property
    def written(self) -> list[EvaluationResult]:
        """The results in the run's directory."""
        path = self.directory / FILE
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [found for line in lines if (found := result_of(line))]
