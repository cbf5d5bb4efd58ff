"""A run around a worker: real services, prompts in the backlog, and a learner that trains nothing."""

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from echo_queue.config import Config, toml_text
from echo_queue.connections.connect import connect_store
from echo_queue.launch.servers.serving import Services
from echo_queue.queue import Chunk, PromptSet, RunRules, ScoredTask, Status
from echo_queue.records import Group, Message, PromptRow, Published, Version
from echo_queue.submission import shards
from echo_queue.weights import Signer, WeightPublisher
from learner.publication import signing_key
from tests.fork_server import Program
from tests.queue.clients import Clients
from tests.waiting import wait_until
from workers import engines
from workers.environments.scorer import Scorer, environments_of
from workers.shutdown import Shutdown
from workers.worker import work

DEADLINE_S = 180.0


class WorkerHarness:
    """Starts the services of a run under `directory` on the model in `folder`."""

    def __init__(self, directory: Path, folder: Path, **settings: Any) -> None:
        merged = _settings(directory, folder, settings)
        self.config = Config.model_validate(merged)
        self.path = directory / "run.toml"
        self.path.write_text(toml_text.written(merged))
        self.services = Services(self.config)
        self.services.start()
        self.store = connect_store(self.config, "learner")
        self.queue = Clients.connected_as(self.config, "learner", self.store)
        self.lineage = 0
        self.signer = Signer.generate()
        self._weight_publisher: WeightPublisher | None = None
        self._shutdown = Shutdown()
        self._threads: list[threading.Thread] = []
        self._processes: list[Program] = []
        self.errors: list[BaseException] = []

    # The other roles --------------------------------------------------------------------------------------------------

    def begin(self, prompts: Sequence[str | list[Message]], tensors: dict[str, Tensor] | None, **columns: Any) -> None:
        """Submits `prompts`, and begins a lineage that publishes `tensors`, if given, as version 0."""
        self.configure()
        self.submit(prompts, **columns)
        self.learner_begins()
        if tensors is not None:
            self.publish(0, tensors)

    def configure(self) -> None:
        self.rules = RunRules(
            s=self.config.staleness.s,
            batch=self.config.learner.batch_groups,
            lease_ms=round(1000 * self.config.queue.lease_s),
            max_attempts=self.config.queue.max_attempts,
            pace=False,
        )
        Clients.connected_as(self.config, "admin", self.store).configure(self.rules)

    def submit(self, prompts: Sequence[str | list[Message]], **columns: Any) -> None:
        self._submit(PromptSet("p", "test"), prompts, columns)

    def submit_as(self, name: str, prompts: Sequence[str], **columns: Any) -> None:
        """Submits `prompts` as a further set to train on."""
        self._submit(PromptSet(name, "test"), prompts, columns)

    def hold_out(self, name: str, prompts: Sequence[str], **columns: Any) -> None:
        """Submits `prompts` as a set that is never trained."""
        self._submit(PromptSet(name, "test", order="held_out"), prompts, columns)

    def _submit(self, prompt_set: PromptSet, prompts: Sequence[str | list[Message]], columns: dict[str, Any]) -> None:
        submitter = Clients.connected_as(self.config, "submitter", self.store)
        submitter.declare(prompt_set, [Chunk(0, 0, len(prompts))])
        rows = [PromptRow(prompt, columns) for prompt in prompts]
        submitter.submit(prompt_set.name, 0, shards.write(self.store, prompt_set.name, 0, 0, rows))

    def learner_begins(self) -> None:
        """Begins a new lineage."""
        self.lineage = self.queue.resume(rules=self.rules).lineage
        trust = signing_key.run_keys(self.signer)
        self.queue.publish_keys(self.lineage, trust)
        chunk_key = trust.chunk_key if self.config.weights.encrypt else None
        settings = self.config.weights
        self._weight_publisher = WeightPublisher(
            self.store, self.config.run.name, self.signer, settings, chunk_key=chunk_key
        )

    def publish(self, number: int, tensors: dict[str, Tensor]) -> Published:
        version = Version(self.lineage, number)
        assert self._weight_publisher is not None, "no learner has begun"
        published = self._weight_publisher.publish(version, tensors, self.config.model.dtype)
        self.queue.publish(self.lineage, published)
        self._weight_publisher.further(version)
        return published

    def drain(self, groups: int) -> list[Group]:
        """Drains and commits the next `groups` groups; lets leases expire as the learner's housekeeper would."""
        drained: list[Group] = []

        def more() -> bool:
            self.queue.reclaim()
            drained.extend(self.queue.drain(self.lineage, groups - len(drained)).groups)
            return len(drained) == groups

        self.until(more, f"{groups} groups")
        self.queue.commit(self.lineage, f"to {drained[-1].task}", [group.task for group in drained])
        return drained

    def evaluate(self, version: int, *sets: str) -> int:
        """Begins a round that asks these held-out sets of a version; returns its number."""
        number = self.queue.evaluate(self.lineage, Version(self.lineage, version), *sets)
        assert number is not None, "another round is under way"
        return number

    def scored(self, prompts: int) -> list[ScoredTask]:
        """Waits for so many prompts of the round to be answered, or to have failed."""
        found: list[ScoredTask] = []

        def more() -> bool:
            self.queue.reclaim()
            found.extend(self.queue.scored(self.lineage, found[-1].entry if found else ""))
            return len(found) == prompts

        self.until(more, f"{prompts} prompts of an evaluation")
        return found

    def answers(self, prompts: int) -> list[Group]:
        """Waits for so many prompts of the round to be answered."""
        return [one.group for one in self.scored(prompts) if one.group is not None]

    def serves(self, number: int) -> bool:
        """Returns whether each worker has reported that it serves this version."""
        version = Version(self.lineage, number)
        return all(one.heartbeat and one.heartbeat.version == version for one in self.status().workers)

    def end_leases(self) -> None:
        """Ends all leases and sweeps, as if `queue.lease_s` had passed without a renewal. No worker may be alive."""
        admin = Clients.connected_as(self.config, "admin").client
        leases = cast(list[bytes], admin.zrange(self.queue.keys.leases, 0, -1))
        admin.zadd(self.queue.keys.leases, dict.fromkeys(leases, 0), xx=True)
        assert self.queue.reclaim().expired == len(leases)

    def died(self, tasks: int) -> list[str]:
        """Waits for `tasks` dead tasks; returns their reasons."""

        def all_dead() -> bool:
            self.queue.reclaim()
            return len(self.queue.dead()) >= tasks

        self.until(all_dead, f"{tasks} dead tasks")
        return [dead.reason for dead in self.queue.dead()]

    @cached_property
    def _monitor(self) -> Clients:
        return Clients.connected_as(self.config, "monitor")

    def status(self) -> Status:
        return self._monitor.status()

    def leave(self) -> None:
        """Makes the workers that are threads of this process leave."""
        self._shutdown.leave("the test says so")

    def until(self, true: Callable[[], bool], what: str) -> None:
        def true_while_workers_live() -> bool:
            if not (came := true()) and self.errors:
                raise AssertionError(f"the worker ended before {what}") from self.errors[0]
            return came

        wait_until(true_while_workers_live, what, DEADLINE_S)

    # Workers ----------------------------------------------------------------------------------------------------------

    def worker(self, name: str = "w1", make_engine: engines.Maker = engines.create) -> threading.Thread:
        """Starts a worker in a thread of this process."""

        def run() -> None:
            scorers = [Scorer(one) for one in environments_of(self.config)]
            try:
                work(self.config, name, scorers, self._shutdown, make_engine)
            except BaseException as error:
                self.errors.append(error)
            finally:
                for scorer in scorers:
                    scorer.close()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def process(self, name: str) -> Program:
        """Starts a worker as a process of its own."""
        self._processes.append(Program("workers", str(self.path), "--name", name))
        return self._processes[-1]

    def end(self) -> None:
        self._shutdown.set()
        for process in self._processes:
            process.kill()
            process.wait(DEADLINE_S)
        for thread in self._threads:
            thread.join(timeout=120)
        self.services.stop()


def generating(run: WorkerHarness) -> bool:
    """Returns whether a worker of the run has reported that it generates."""
    return any(one.heartbeat and one.heartbeat.tokens_per_s > 0 for one in run.status().workers)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors that a learner publishes of the model in `folder`."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.inference_mode()
def assert_generated_by(folder: Path, group: Group, temperature: float) -> None:
    """Asserts that the group's log-probabilities are those of the model in `folder`, to 1e-4."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    for sample in group.samples:
        ids = torch.tensor([*group.prompt.tolist(), *sample.tokens.tolist()]).unsqueeze(0)
        logits = model(ids).logits[0, len(group.prompt) - 1 : -1]
        expected = torch.log_softmax(logits / temperature, -1).gather(1, ids[0, len(group.prompt) :, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


def _settings(directory: Path, folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "run": {"name": "test", "dir": str(directory / "run")},
        "model": {"base": str(folder), "max_prompt_tokens": 64, "max_new_tokens": 16},
        "environment": {"kind": "function", "function": "tests.workers.rewards:matches_column"},
        "rollout": {"group_size": 3, "concurrent_groups": 2, "temperature": 0.8, "grace_s": 600.0},
        "learner": {"batch_groups": 2},
        "queue": {"lease_s": 60.0, "max_attempts": 2, "stall_deadline_s": 120.0},
        "telemetry": {"heartbeat_s": 0.2},
    }
    for section, values in overrides.items():
        settings[section] = values if isinstance(values, list) else settings.get(section, {}) | values
    return settings
