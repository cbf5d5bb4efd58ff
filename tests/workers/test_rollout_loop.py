"""The rollout loop between real services; the learner is the test."""

import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.errors import IDLE, ConfigError, DeadlineError, IdleError
from echo_queue.queue import Lease, WorkerOrder
from echo_queue.queue.pool_status import pools_of
from echo_queue.queue.reasons import in_one_line
from echo_queue.records import NOTHING, PartialGroup, PromptRow, PromptShard, Published, Task, Tokens, Version
from tests.queue.clients import Clients
from tests.waiting import wait_until
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, assert_generated_by, generating, tensors_of
from workers import engines
from workers.assignment import Assignment, seed_of
from workers.completer import GroupCompleter
from workers.engines import Engine, Sampling
from workers.held_leases import HeldLeases
from workers.leaser import weights_needed
from workers.prompt_encoder import PromptEncoder
from workers.rollout_loop import most_groups

torch.set_num_threads(1)
Begin = Callable[..., WorkerHarness]
ANSWER = "3"
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(6)]


def misbehaving(timeout_s: float = 120.0) -> dict[str, object]:
    return {"kind": "function", "function": "tests.workers.rewards:as_told", "timeout_s": timeout_s}


@pytest.mark.slow
def test_every_prompt_becomes_a_scored_group_with_the_models_own_logprobs(harness: Begin, folder: Path) -> None:
    run = harness(rollout={"pool": "spot", "machine": "node-7"})
    run.begin(QUESTIONS, tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    groups = run.drain(len(QUESTIONS))
    assert sorted(group.index for group in groups) == list(range(len(QUESTIONS)))
    for group in groups:
        assert_generated_by(folder, group, temperature=0.8)
        assert (group.worker, group.oldest, group.newest, group.lineage) == ("w1", 0, 0, run.lineage)
        assert {sample.reward for sample in group.samples} <= {0.0, 1.0} and len(group.samples) == 3
    assert run.queue.audit().ok
    run.until(lambda: all(pool.generation.groups == len(QUESTIONS) for pool in pools_of(run.status().workers)), "times")
    ((pool,), (worker,)) = pools_of(run.status().workers), run.status().workers
    assert worker.heartbeat and (worker.heartbeat.pool, worker.heartbeat.machine) == ("spot", "node-7")
    assert (pool.name, pool.workers, pool.machines) == ("spot", 1, 1) and pool.generation.p50_s
    run.queue.finish(run.lineage)
    run.until(lambda: run.status().counts.get("left_finished") == 1, "the worker's departure")


class LateAnswer:
    """Holds the first completion up until the learner has advanced, and its answer until the task is leased again."""

    def __init__(self) -> None:
        self.completing, self.advanced = threading.Event(), threading.Event()
        self._leases, self._first, self._again = 0, True, threading.Event()

    def before(self, step: str, about: object) -> None:
        if step == "complete" and self._first:
            self.completing.set()
            assert self.advanced.wait(60.0), "the learner advances"

    def after(self, step: str, about: object, answer: object) -> None:
        if step == "complete" and self._first:
            self._first = False
            assert self._again.wait(60.0), "the task is leased again"

    def replaced_add(self) -> Callable[[HeldLeases, Sequence[Task], int], None]:
        """Returns `HeldLeases.add` that says when it was called a second time."""
        add = HeldLeases.add

        def counted(held: HeldLeases, tasks: Sequence[Task], version: int) -> None:
            add(held, tasks, version)
            self._leases += 1
            if self._leases == 2:
                self._again.set()

        return counted


@pytest.mark.slow
def test_a_completion_that_was_late_costs_the_tasks_next_lease_nothing(
    harness: Begin, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = save_model(tmp_path / "newer", seed=1)
    run = harness(staleness={"s": 0}, learner={"batch_groups": 1})
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)

    late = LateAnswer()
    monkeypatch.setattr(failpoints, "observer", late)
    monkeypatch.setattr(HeldLeases, "add", late.replaced_add())
    run.worker("w1")
    run.until(late.completing.is_set, "the first completion")
    run.publish(1, tensors_of(newer))
    run.queue.advance(run.lineage, 1, 0, 1.0)
    late.advanced.set()
    (group,) = run.drain(1)
    assert (group.oldest, group.attempt) == (1, 0)
    assert run.queue.audit().ok and "expired" not in run.status().counts


@pytest.mark.slow
def test_new_versions_are_loaded_between_calls_and_named_in_their_groups(
    harness: Begin, folder: Path, tmp_path: Path
) -> None:
    newer = save_model(tmp_path / "newer", seed=1)
    run = harness(staleness={"s": 0})
    run.begin(QUESTIONS[:4], tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    for group in run.drain(2):
        assert_generated_by(folder, group, temperature=0.8)
    run.publish(1, tensors_of(newer))
    run.queue.advance(run.lineage, 1, 2, 1.0)
    for group in run.drain(2):
        assert group.oldest == group.newest == 1
        assert_generated_by(newer, group, temperature=0.8)


@pytest.mark.slow
def test_a_worker_that_joins_late_starts_with_the_newest_weights(harness: Begin, folder: Path, tmp_path: Path) -> None:
    newer = save_model(tmp_path / "newer", seed=1)
    run = harness()
    run.begin(QUESTIONS[:2], tensors_of(folder), wanted=ANSWER)
    run.publish(3, tensors_of(newer))
    run.worker("w1")
    for group in run.drain(2):
        assert group.oldest == 3
        assert_generated_by(newer, group, temperature=0.8)


@pytest.mark.slow
def test_a_failing_environment_costs_attempts_and_leaves_its_traceback(
    harness: Begin, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = harness(environment=misbehaving())
    run.begin(["raise", "7 + 5 ="], tensors_of(folder))
    worker = run.worker("w1")
    assert run.drain(1)[0].index == 1
    (reason,) = run.died(1)
    assert "RuntimeError: no such luck (rewards.py, line " in reason and "Traceback" in reason
    run.leave()
    run.until(lambda: not worker.is_alive(), "the worker's end")  # it logs a failure after it has told the queue
    failures = [record.getMessage() for record in caplog.records if record.name == "workers.completer"]
    assert sum("no such luck (rewards.py, line " in message for message in failures) > 1
    assert sum(", in misbehaves" in message for message in failures) == 1, "once for a cause"
    assert run.queue.audit().ok


@pytest.mark.slow
def test_a_hanging_environment_costs_attempts_and_the_others_are_scored(harness: Begin, folder: Path) -> None:
    run = harness(environment=misbehaving(timeout_s=2.0))
    run.begin(["hang", "7 + 5 ="], tensors_of(folder))
    run.worker("w1")
    assert run.drain(1)[0].index == 1
    (reason,) = run.died(1)
    assert "timeout_s = 2" in reason


@pytest.mark.slow
def test_a_prompt_that_cannot_be_put_to_the_model_dies_with_the_reason(harness: Begin, folder: Path) -> None:
    run = harness()
    chat = [{"role": "user", "content": "yes?"}]
    run.begin(["yes no maybe " * 40, chat, "no?"], tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    assert run.drain(1)[0].index == 2
    reasons = "\n".join(run.died(2))
    assert "tokens; model.max_prompt_tokens is 64" in reasons and "no chat template" in reasons


REFUSES = """
{%- for message in messages %}{% if message.role == "system" %}{{ raise_exception("System role not supported") }}
{%- elif message.content == "undefined" %}{{ message.name.first }}{% elif message.content == "type" %}{{ 1 + "1" }}
{%- endif %}{{ message.content }}{% endfor %}"""


def enlarged(tokenizer_of: Path, folder: Path) -> Path:
    """Returns a model whose tokenizer has one id more than the model, and a chat template that refuses much."""
    model = Path(shutil.copytree(tokenizer_of, folder))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["<think>"])
    tokenizer.chat_template = REFUSES
    tokenizer.save_pretrained(model)
    return model


@pytest.mark.slow
def test_a_prompt_that_the_template_or_the_model_refuses_dies_alone_and_with_its_true_cause(
    harness: Begin, folder: Path, tmp_path: Path
) -> None:
    run = harness(enlarged(folder, tmp_path / "enlarged"))
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "no?"}]
    bad = [system, *([{"role": "user", "content": content}] for content in ("undefined", "type")), "yes <think>"]
    run.begin([*bad, *QUESTIONS], tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    assert {group.index for group in run.drain(len(QUESTIONS))} == set(range(len(bad), len(bad) + len(QUESTIONS)))
    run.died(len(bad))
    reasons = {int(dead.id.rpartition("/")[2]): in_one_line(dead.reason) for dead in run.queue.dead()}
    refuses = "prompt: the model's chat template refuses it: "
    assert reasons[0].startswith(f"{refuses}System role not supported")
    assert reasons[1].startswith(f"{refuses}UndefinedError: ") and reasons[2].startswith(f"{refuses}TypeError: ")
    assert "the model knows only ids below" in reasons[3]
    assert run.queue.audit().ok and not run.errors


@pytest.mark.slow
def test_whatever_reading_a_task_raises_costs_that_task_alone(
    harness: Begin, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = PromptEncoder.encode

    def without_twos(self: PromptEncoder, row: PromptRow) -> Tokens:
        if "of 2 and" in str(row.prompt):
            raise KeyError("two")
        return encode(self, row)

    monkeypatch.setattr(PromptEncoder, "encode", without_twos)
    run = harness()
    run.begin(QUESTIONS, tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    run.drain(len(QUESTIONS) - 1)
    (reason,) = run.died(1)
    assert in_one_line(reason) == "KeyError: 'two'" and "Traceback" in reason
    assert run.queue.audit().ok and not run.errors


@pytest.mark.slow
def test_a_shard_that_is_damaged_or_gone_costs_its_tasks_and_not_the_worker(harness: Begin, folder: Path) -> None:
    run = harness()
    run.begin(QUESTIONS[:2], tensors_of(folder), wanted=ANSWER)
    (shard,) = run.store.list("prompts/")
    whole = run.store.get(shard.key)
    run.store.put(shard.key, whole.replace(b"sum", b"SUM"))
    run.worker("w1")
    reasons = run.died(2)
    assert all("not the ones written" in reason and shard.key in reason for reason in reasons)
    run.store.delete([shard.key])
    run.queue.revive(["p/0/0"])
    run.until(lambda: run.queue.reclaim().dead == 1, "a death")
    assert "is gone from the store" in run.queue.dead(1)[0].reason
    run.store.put(shard.key, whole)
    run.queue.revive(["p/0/0", "p/0/1"])
    assert {group.index for group in run.drain(2)} == {0, 1}
    assert run.queue.audit().ok


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"reward_max": 0.5}, {"reward_min": 100.0}])
def test_a_reward_out_of_its_range_is_a_failed_attempt(harness: Begin, folder: Path, limits: dict[str, float]) -> None:
    run = harness(environment={"kind": "function", "function": "tests.workers.rewards:counts_ids"} | limits)
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    (reason,) = run.died(1)
    assert "has the reward" in reason and "environment.reward_min is" in reason


def test_chat_goes_through_the_models_template(harness: Begin, tmp_path: Path) -> None:
    model = save_model(tmp_path / "chat", seed=0, chat=True)
    run = harness(model, environment={"kind": "function", "function": "tests.workers.rewards:reads_chat"})
    run.begin([[{"role": "user", "content": "yes?"}]], tensors_of(model))
    run.worker("w1")
    group = run.drain(1)[0]
    assert_generated_by(model, group, temperature=0.8)


@pytest.mark.slow
def test_a_finished_run_lets_its_workers_go(harness: Begin, folder: Path) -> None:
    run = harness()
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)
    worker = run.worker("w1")
    run.drain(1)
    run.queue.finish(run.lineage, force=True)
    worker.join(timeout=120)
    assert not worker.is_alive() and not run.errors


@pytest.mark.slow
def test_a_worker_that_waits_in_vain_for_a_silent_learner_ends_with_the_code_that_gives_its_machine_back(
    harness: Begin, folder: Path
) -> None:
    run = harness(rollout={"idle_deadline_s": 1.0})
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)
    worker = run.process("w1")
    run.drain(1)
    assert worker.wait(timeout=120) == IDLE
    run.queue.reclaim()
    assert run.status().workers == () and run.queue.audit().ok


@pytest.mark.slow
def test_a_worker_waits_four_times_as_long_for_a_learner_that_is_heard(harness: Begin, folder: Path) -> None:
    run = harness(rollout={"idle_deadline_s": 1.0})
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    run.drain(1)

    def ended() -> bool:
        run.queue.reclaim()
        return bool(run.errors)

    wait_until(ended, "the end of the worker")
    (error,) = run.errors
    assert isinstance(error, IdleError)
    waited = re.search(r"no task came for (\d+) s", str(error))
    assert waited and int(waited[1]) >= 4


@pytest.mark.slow
def test_a_suspended_worker_that_nobody_reinstates_ends_although_the_learner_moves(
    harness: Begin, folder: Path
) -> None:
    run = harness(rollout={"idle_deadline_s": 1.0})
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    run.drain(1)
    run.queue.suspend(run.lineage, "w1", "its last 8 groups were bad")
    version = 0

    def ended() -> bool:
        nonlocal version
        version += 1
        run.queue.advance(run.lineage, version, 0, 1.0)
        run.queue.reclaim()
        return bool(run.errors)

    wait_until(ended, "the end of the worker")
    (error,) = run.errors
    assert isinstance(error, IdleError) and "is suspended for 1 s: its last 8 groups were bad" in str(error)


@pytest.mark.slow
def test_weights_that_cannot_be_fetched_leave_the_old_ones_serving(harness: Begin, folder: Path) -> None:
    run = harness(queue={"stall_deadline_s": 10.0}, staleness={"s": 1})
    run.begin(QUESTIONS * 2, tensors_of(folder), wanted=ANSWER)
    worker = run.worker("w1")
    run.drain(2)
    run.queue.publish(run.lineage, Published(Version(run.lineage, 1), "weights/nowhere", "0" * 64))
    run.queue.advance(run.lineage, 1, 2, 1.0)
    assert all(group.oldest == 0 for group in run.drain(2))
    run.queue.publish(run.lineage, Published(Version(run.lineage, 2), "weights/nowhere", "0" * 64))
    run.queue.advance(run.lineage, 2, 2, 1.0)
    worker.join(timeout=120)
    (error,) = run.errors
    assert isinstance(error, DeadlineError)
    assert "or newer did not arrive within 10 s" in str(error) and "weights/nowhere" in str(error)


@pytest.mark.slow
def test_a_worker_far_away_gets_its_base_model_from_the_store(harness: Begin, folder: Path) -> None:
    run = harness(model={"base": "init", "max_prompt_tokens": 64, "max_new_tokens": 16})
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    run.store.upload_folder(folder, "base")
    assert_generated_by(folder, run.drain(1)[0], temperature=0.8)


@pytest.mark.slow
def test_a_folder_that_only_the_learners_machine_has_reaches_a_worker_through_the_store(
    harness: Begin, folder: Path, tmp_path: Path
) -> None:
    run = harness(model={"base": str(tmp_path / "elsewhere"), "max_prompt_tokens": 64, "max_new_tokens": 16})
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)
    run.worker("w1")
    run.store.upload_folder(folder, "base")
    assert_generated_by(folder, run.drain(1)[0], temperature=0.8)


@pytest.mark.slow
def test_a_model_that_is_nowhere_ends_the_worker_with_where_it_was_looked_for(harness: Begin, folder: Path) -> None:
    run = harness(model={"base": "./nowhere"}, queue={"stall_deadline_s": 0.5})
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted=ANSWER)
    run.worker("w1").join(timeout=120)
    (error,) = run.errors
    assert isinstance(error, DeadlineError)
    assert "./nowhere is no folder here and no model that the hub gives, and the learner stored no base" in str(error)


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_ends_the_worker_before_it_leases(harness: Begin, folder: Path) -> None:
    run = harness(environment={"kind": "function", "function": "nowhere_at_all:f"})
    run.begin(QUESTIONS[:1], tensors_of(folder))
    run.worker("w1").join(timeout=120)
    (error,) = run.errors
    assert isinstance(error, ConfigError)
    assert run.status().in_flight == 0


@pytest.mark.slow
def test_sigterm_hands_back_what_cannot_be_finished(harness: Begin, tmp_path: Path) -> None:
    endless = save_model(tmp_path / "endless", seed=0, stop=False)
    run = harness(
        endless,
        model={"base": str(endless), "max_prompt_tokens": 64, "max_new_tokens": 8000},
        rollout={"grace_s": 2.0, "concurrent_groups": 2},
    )
    run.begin(QUESTIONS[:2], tensors_of(endless), wanted=ANSWER)
    worker = run.process("w1")
    run.until(lambda: any(one.heartbeat and one.heartbeat.tokens_per_s > 0 for one in run.status().workers), "tokens")
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(timeout=120) == 0
    assert run.queue.reclaim().released == 2
    assert run.queue.audit().ok


@pytest.mark.slow
def test_sigterm_ends_a_worker_whose_environment_hangs(harness: Begin, folder: Path) -> None:
    run = harness(environment=misbehaving(600.0), rollout={"grace_s": 2.0})
    run.begin(["hang"], tensors_of(folder))
    worker = run.process("w1")
    run.until(
        lambda: any(one.heartbeat and one.heartbeat.state == "scoring" for one in run.status().workers), "scoring"
    )
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(timeout=120) == 0
    assert run.queue.reclaim().released == 1


@pytest.mark.slow
def test_what_a_killed_worker_held_is_done_by_another(harness: Begin, tmp_path: Path) -> None:
    endless = save_model(tmp_path / "endless", seed=0, stop=False)
    run = harness(endless, model={"base": str(endless), "max_prompt_tokens": 64, "max_new_tokens": 1000})
    run.begin(QUESTIONS[:2], tensors_of(endless), wanted=ANSWER)
    killed = run.process("w1")
    run.until(lambda: any(one.heartbeat and one.heartbeat.tokens_per_s > 0 for one in run.status().workers), "tokens")
    killed.kill()
    killed.wait(timeout=120)
    run.end_leases()
    run.process("w2")
    for group in run.drain(2):
        assert (group.worker, group.attempt) == ("w2", 1)
    assert run.queue.audit().ok


LENGTH = 2000
SOME = 20
"""Tokens of a sample, of which every sample of a group that has so many for each has drawn more than ten."""
ENDLESS = {"max_prompt_tokens": 64, "max_new_tokens": LENGTH}


def stored(run: WorkerHarness) -> dict[str, PartialGroup]:
    """Returns the partial rollouts that the next worker would continue; the tasks are handed back."""
    run.queue.reclaim()
    assert run.status().in_flight == 0
    probe = Clients.connected_as(run.config, "worker", run.store)
    lease = probe.lease("probe", Version(run.lineage, 0), 9)
    probe.release("probe", [task.id for task in lease.tasks])
    run.queue.reclaim()
    return dict(lease.partials)


def stored_tokens(run: WorkerHarness) -> list[int]:
    """Returns the number of tokens of each partial rollout (`partials` of `library/state.lua`)."""
    return [int(words.split()[3]) for words in run.queue.client.hvals(run.queue.keys.partials)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGKILL, id="SIGKILL", marks=pytest.mark.proof(kind="workers' ends", share=0.5)),
        pytest.param(None, id="dismissed", marks=pytest.mark.proof(kind="workers' ends", share=0.5)),
    ],
)
def test_another_worker_goes_on_where_one_was_taken_away(
    harness: Begin, tmp_path: Path, end: signal.Signals | None
) -> None:
    """… by its machine, or because the fleet's controller dismissed it."""
    endless = save_model(tmp_path / "endless", seed=0, stop=False)
    run = harness(endless, model={"base": str(endless), **ENDLESS}, rollout={"progress_s": 0.2, "grace_s": 20.0})
    run.begin(QUESTIONS[:2], tensors_of(endless), wanted=ANSWER)
    taken = run.process("w1")
    run.until(lambda: generating(run), "tokens")
    enough = SOME * run.config.rollout.group_size
    run.until(lambda: [most > enough for most in stored_tokens(run)] == [True, True], "partial rollouts of both")
    if end is None:
        controller = Clients.connected_as(run.config, "controller").controller("c1")
        controller.lead(60.0)
        controller.order(WorkerOrder("leave"), ["w1"])
    else:
        os.kill(taken.pid, end)
    assert taken.wait(timeout=120) == (-9 if end == signal.SIGKILL else 0)
    if end == signal.SIGKILL:
        run.end_leases()
    partials = stored(run)
    assert len(partials) == 2 and all(len(one.tokens) > 10 for begun in partials.values() for one in begun.samples)
    run.worker("w2")
    for group in run.drain(2):
        assert group.worker == "w2"
        for sample, begun in zip(group.samples, partials[group.task].samples, strict=True):
            np.testing.assert_array_equal(sample.tokens[: len(begun.tokens)], begun.tokens)
            np.testing.assert_array_equal(sample.logprobs[: len(begun.tokens)], begun.logprobs)
        assert_generated_by(endless, group, temperature=0.8)
    assert run.queue.audit().ok


class SlowStore:
    """A server that takes the last partial rollouts of a leaving worker only once all its leases were renewed twice.

    It holds the lease keeper's heartbeat back until then, which would otherwise have stored them before.
    """

    def __init__(self) -> None:
        self.holding, self.storing = threading.Event(), threading.Event()
        self.renewed = threading.Semaphore(0)
        self.waited: list[bool] = []

    def before(self, step: str, about: object) -> None:
        of_lease_keeper = threading.current_thread().name == "lease keeper"
        if of_lease_keeper and step == "heartbeat":
            self.holding.set()
            self.storing.wait(60.0)
        elif step == "progress" and not of_lease_keeper:
            self.storing.set()
            self.waited.append(self.renewed.acquire(timeout=60.0) and self.renewed.acquire(timeout=60.0))

    def after(self, step: str, about: object, answer: object) -> None:
        if step == "renew" and self.storing.is_set():
            self.renewed.release()


@pytest.mark.slow
def test_a_worker_that_leaves_renews_its_leases_until_all_that_it_sampled_is_stored(
    harness: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = save_model(tmp_path / "endless", seed=0, stop=False)
    run = harness(endless, model={"base": str(endless), **ENDLESS}, telemetry={"heartbeat_s": 0.1})
    run.begin(QUESTIONS[:2], tensors_of(endless), wanted=ANSWER)
    made: list[Engine] = []

    def make_engine(config: Config, folder: str, version: Version, stop: Sequence[int]) -> Engine:
        made.append(engines.create(config, folder, version, stop))
        return made[-1]

    slow = SlowStore()
    worker = run.worker("w1", make_engine)
    run.until(lambda: generating(run), "tokens")
    monkeypatch.setattr(failpoints, "observer", slow)
    assert slow.holding.wait(60.0)
    run.leave()
    worker.join(timeout=120)
    assert not run.errors and slow.waited == [True]
    assert sum(len(one.tokens) for begun in stored(run).values() for one in begun.samples) == made[0].sampled > 0
    assert run.status().counts.get("expired", 0) == 0


@pytest.mark.slow
def test_a_worker_that_stands_still_for_longer_than_a_lease_loses_what_it_has_not_stored_and_no_more(
    harness: Begin, tmp_path: Path
) -> None:
    """A dismissal cannot help it: until it goes on, its tasks may be another worker's."""
    endless = save_model(tmp_path / "endless", seed=0, stop=False)
    settings = {"model": {"base": str(endless), **ENDLESS}, "rollout": {"progress_s": 0.2, "grace_s": 20.0}}
    run = harness(endless, **settings, queue={"lease_s": 2.0})
    run.begin(QUESTIONS[:2], tensors_of(endless), wanted=ANSWER)
    still = run.process("w1")
    run.until(lambda: run.queue.client.hlen(run.queue.keys.partials) == 2, "partial rollouts of both")
    controller = Clients.connected_as(run.config, "controller").controller("c1")
    controller.lead(60.0)
    os.kill(still.pid, signal.SIGSTOP)
    controller.order(WorkerOrder("leave", 10.0), ["w1"])
    run.until(lambda: bool(run.queue.reclaim()) and run.status().in_flight == 0, "leases to end")
    partials = stored(run)
    os.kill(still.pid, signal.SIGCONT)
    assert still.wait(timeout=120) == 0
    assert run.status().counts["expired"] == 2
    run.worker("w2")
    for group in run.drain(2):
        assert (group.worker, group.attempt) == ("w2", 0), "a worker that has got on costs no attempt"
        for sample, begun in zip(group.samples, partials[group.task].samples, strict=True):
            np.testing.assert_array_equal(sample.tokens[: len(begun.tokens)], begun.tokens)
    assert run.queue.audit().ok


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["in-flight", "push-pull"])
def test_a_mode_says_when_new_weights_are_taken(harness: Begin, tmp_path: Path, mode: str) -> None:
    old, new = (save_model(tmp_path / name, seed, stop=False) for seed, name in enumerate(("old", "new")))
    run = harness(old, model={"base": str(old), **ENDLESS}, rollout={"mode": mode}, staleness={"s": 2})
    run.begin(QUESTIONS[:4], tensors_of(old), wanted=ANSWER)
    run.worker("w1")
    run.until(lambda: generating(run), "tokens")
    run.publish(1, tensors_of(new))
    groups = run.drain(4)
    versions = {tuple(span.version for span in sample.spans) for group in groups for sample in group.samples}
    if mode == "in-flight":
        assert (0, 1) in versions, "what ran went on with the new weights"
        assert any(0 < sample.spans[-1].start < LENGTH for group in groups for sample in group.samples)
    else:
        assert versions == {(0,), (1,)}, "what ran ended with the weights it began with"
        for group in groups:
            assert_generated_by((old, new)[group.oldest], group, temperature=0.8)


class HeldUpCompleter:
    """Lets a worker's completer begin only once `samples` samples are in its inbox, as after an outage of the queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
        self.submitted = 0
        begin, submit = GroupCompleter.start, GroupCompleter.submit

        def counted(completer: GroupCompleter, assignment: Assignment, number: int) -> None:
            submit(completer, assignment, number)
            self.submitted += 1
            if self.submitted == samples:
                begin(completer)

        monkeypatch.setattr(GroupCompleter, "start", lambda completer: None)
        monkeypatch.setattr(GroupCompleter, "submit", counted)


@pytest.mark.slow
def test_a_group_that_began_from_scratch_before_its_first_samples_were_scored_is_completed_once(
    harness: Begin, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = {"kind": "interactive", "function": "tests.workers.guessing:Forgetful", "max_turns": 1}
    run = harness(environment=game, rollout={"mode": "in-flight", "concurrent_groups": 1})
    completer = HeldUpCompleter(monkeypatch, samples=6)
    run.begin(QUESTIONS[:2], tensors_of(folder))
    run.worker("w1")
    run.until(lambda: completer.submitted == 3, "the group's first samples")
    run.learner_begins()
    run.publish(0, tensors_of(folder))
    assert {(group.task, group.lineage) for group in run.drain(2)} == {("p/0/0", run.lineage), ("p/0/1", run.lineage)}
    assert run.status().counts["completed"] == 2
    assert run.queue.audit().ok


# Decisions ------------------------------------------------------------------------------------------------------------


def task(name: str = "p/0/1", min_pv: int = 0, attempt: int = 1) -> Task:
    return Task(name, "p", 0, 1, PromptShard("o", 0, 9), attempt, 0, 0, min_pv, 1, "tasks", "1-0")


def lease(min_pv: int, published: Version, abandoned: bool = False) -> Lease:
    newest = Published(published, "m", "d")
    return Lease((task(), task("p/0/2", min_pv)), newest, published, abandoned, finished=False)


def test_weights_are_refreshed_only_for_a_task_that_needs_it() -> None:
    assert weights_needed(lease(4, Version(1, 7)), serving=Version(1, 4)) is None
    assert weights_needed(lease(5, Version(1, 7)), serving=Version(1, 4)) == Version(1, 5)


def test_what_an_evaluation_asks_needs_no_newer_weights() -> None:
    held_out = replace(task("held/1/0", min_pv=4), version=Version(1, 4))
    mixed = lease(5, Version(1, 7))
    assert weights_needed(replace(mixed, tasks=(held_out,)), serving=Version(1, 4), refresh=True) is None
    assert weights_needed(replace(mixed, tasks=(held_out, *mixed.tasks)), serving=Version(1, 4)) == Version(1, 5)


def test_an_environment_plays_the_same_session_for_every_version_that_is_evaluated() -> None:
    def session(id: str, version: Version | None) -> int:
        prompt = np.ones(3, np.int32)
        asked = replace(task(id), version=version)
        return Assignment(asked, PromptRow("x", {}), prompt, 0, 9, Sampling(), samples=[NOTHING]).session_seed(0)

    assert session("held/1/1", Version(1, 4)) == session("held/2/1", Version(1, 7))
    assert session("p/0/1", None) != session("p/1/1", None)


def test_abandoned_weights_are_replaced_even_if_their_number_is_high_enough() -> None:
    assert weights_needed(lease(2, Version(2, 3), abandoned=True), serving=Version(1, 9)) == Version(2, 3)


def test_on_policy_workers_share_a_batch() -> None:
    def config(s: int, batch: int, workers: int) -> Config:
        return Config.model_validate(
            {
                "run": {"name": "r", "dir": "r"},
                "staleness": {"s": s},
                "learner": {"batch_groups": batch},
                "rollout": {"workers": workers, "concurrent_groups": 8},
            }
        )

    assert most_groups(config(s=0, batch=8, workers=2)) == 4
    assert most_groups(config(s=0, batch=9, workers=2)) == 5
    assert most_groups(config(s=0, batch=64, workers=2)) == 8
    assert most_groups(config(s=4, batch=8, workers=2)) == 8


def test_seeds_differ_by_run_task_and_words() -> None:
    seeds = {seed_of(0, "t"), seed_of(1, "t"), seed_of(0, "u"), seed_of(0, "t", 1), seed_of(0, "t", 1, 2)}
    assert len(seeds) == 5 and all(0 <= one < 2**63 for one in seeds)
    assert seed_of(0, "t", 1) == seed_of(0, "t", 1)


def test_a_refresh_leaves_no_weights_but_the_newest() -> None:
    assert weights_needed(lease(4, Version(1, 7)), serving=Version(1, 4), refresh=True) == Version(1, 7)
    assert weights_needed(lease(4, Version(1, 7)), serving=Version(1, 7), refresh=True) is None
