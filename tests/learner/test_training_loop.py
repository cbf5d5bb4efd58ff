import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.errors import DeadlineError, EchoQueueError, FencedError
from echo_queue.queue import Chunk, PromptSet
from echo_queue.records import PromptShard, Published, Version
from echo_queue.reporting import metrics
from learner import leader, training_loop
from learner.diagnostics.guard import MEMORY
from learner.leader import export
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.training_loop import open_loop, train
from tests.learner.learner_harness import LearnerHarness
from tests.learner.recovery.one_process import newest
from tests.learner.synthetic import VOCABULARY
from tests.waiting import wait_until

PROMPTS = 42
IDS = sorted(f"set/0/{index}" for index in range(PROMPTS))


def finished(harness: LearnerHarness, config: Config) -> None:
    """Everything that must hold of a run that has ended, however it went."""
    queue = harness.queue(config)
    audit, status = queue.audit(), queue.status()
    assert audit.ok, audit
    assert status.finished and audit.trained == PROMPTS
    assert sorted(checkpoint.trained_ids(harness.store(config))) == IDS
    lines = metrics.read(config.run.dir / "metrics.jsonl")
    assert max(int(lag) for line in lines for lag in line.lags) <= config.staleness.s


def test_what_comes_while_the_model_is_written_is_trained_as_well(
    harness: LearnerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, more = harness.config(), [Chunk(0, 0, 5)]
    harness.submit(config, 8)
    harness.work(config)
    queue = harness.queue(config)

    def exporting(*words: Any) -> None:
        if queue.declare(PromptSet("more", "made up"), more):
            queue.submit("more", 0, PromptShard("nowhere", 0, 5))
        export(*words)

    monkeypatch.setattr(leader, "export", exporting)
    train(config, threading.Event())
    assert (queue.audit().trained, queue.status().finished) == (13, True)


@pytest.mark.slow
def test_a_finished_run_goes_on_with_what_was_revived(harness: LearnerHarness) -> None:
    config = harness.config()
    harness.submit(config, 8)
    queue = harness.queue(config)
    queue.publish(0, Published(Version(0, 0), "nowhere", "digest"))
    assert queue.bury("set/0/7", "by hand")
    harness.work(config)
    train(config, threading.Event())
    assert (queue.audit().trained, queue.status().finished) == (7, True)
    queue.revive(["set/0/7"])
    train(config, threading.Event())
    assert (queue.audit().trained, queue.status().finished) == (8, True)


@pytest.mark.slow
def test_every_prompt_is_trained_once_and_the_model_is_a_hugging_face_folder(harness: LearnerHarness) -> None:
    config = harness.config()
    harness.submit(config, PROMPTS)
    harness.work(config)
    train(config, threading.Event())
    finished(harness, config)

    lines = metrics.read(config.run.dir / "metrics.jsonl")
    assert [line.version for line in lines] == list(range(1, 12))
    assert [line.groups for line in lines] == [4] * 10 + [2]
    found = newest(harness.store(config))
    assert found is not None and found[0].version == 11

    model = AutoModelForCausalLM.from_pretrained(config.run.dir / "model")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, found[1][f"master/{name}"])
    text = torch.tensor([[1, 2, 3]])
    base = AutoModelForCausalLM.from_pretrained(config.base_model)
    assert not torch.equal(model(text).logits, base(text).logits)
    assert AutoTokenizer.from_pretrained(config.run.dir / "model").convert_ids_to_tokens(7) == "w7"

    published = harness.queue(config).published()
    assert published is not None and published.version.number == 11
    lineage = harness.queue(config).status().learner.lineage
    train(config, threading.Event())
    assert harness.queue(config).status().learner.lineage == lineage, "a finished run is left as it is"


class Steps:
    """Every step of this process that is over, and what it concerned."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, object]] = []

    def before(self, step: str, about: object) -> None:
        pass

    def after(self, step: str, about: object, answer: object) -> None:
        self.taken.append((step, about))


@pytest.mark.slow
def test_the_queue_hears_of_a_checkpoint_only_once_it_is_whole(
    monkeypatch: pytest.MonkeyPatch, harness: LearnerHarness
) -> None:
    config = harness.config()
    harness.submit(config, PROMPTS)
    harness.work(config)
    monkeypatch.setattr(failpoints, "observer", steps := Steps())
    train(config, threading.Event())
    saved: set[str] = set()
    committed = 0
    for step, about in steps.taken:
        if step in ("put checkpoints/manifest.json", "put once checkpoints/manifest.json"):
            saved.add(str(about).removeprefix("checkpoints/").removesuffix("/manifest.json"))
        elif step in ("commit", "restore"):
            assert isinstance(about, tuple) and about[2] in saved
            committed += 1
    assert committed == len(saved) > 1


def test_a_publication_that_redis_forgot_is_made_again(harness: LearnerHarness) -> None:
    """A fail-over can lose a publication: without it the workers would wait for weights until the learner gives up."""
    config = harness.config()
    harness.submit(config, PROMPTS)
    queue, stop = harness.queue(config), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        learner = pool.submit(train, config, stop)
        wait_until(queue.published, "the first weights")
        queue.client.delete(queue.keys.published)
        wait_until(queue.published, "the same weights again", deadline_s=20.0)
        stop.set()
        learner.result(60.0)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
def test_a_base_model_in_a_folder_is_in_the_store_once_a_learner_has_begun_and_is_sent_no_second_time(
    monkeypatch: pytest.MonkeyPatch, harness: LearnerHarness, tmp_path: Path
) -> None:
    config, stop = harness.config(), threading.Event()
    stop.set()
    sent = []
    for _ in range(2):
        monkeypatch.setattr(failpoints, "observer", steps := Steps())
        train(config, stop)
        sent.append([about for step, about in steps.taken if step.startswith("put base")])
        harness.store(config).download_folder("base", tmp_path / "elsewhere")
        assert files_of(tmp_path / "elsewhere") == files_of(Path(config.base_model))
    assert sent[0][-1] == "base/index.json" and len(sent[0]) == len(files_of(Path(config.base_model))) + 1
    assert sent[1] == []


@pytest.mark.slow
def test_s_of_zero_trains_on_policy_only(harness: LearnerHarness) -> None:
    config = harness.config(staleness={"s": 0})
    harness.submit(config, PROMPTS)
    harness.work(config)
    train(config, threading.Event())
    finished(harness, config)


@pytest.mark.slow
def test_max_updates_ends_a_run_in_the_middle_of_its_backlog(harness: LearnerHarness) -> None:
    config = harness.config(learner={"max_updates": 4})
    harness.submit(config, PROMPTS)
    harness.work(config)
    train(config, threading.Event())
    assert len(checkpoint.trained_ids(harness.store(config))) == 16
    assert harness.queue(config).status().finished
    assert harness.queue(config).audit().ok


@pytest.mark.slow
def test_bfloat16_runs_end_too(harness: LearnerHarness) -> None:
    learner = {"kl": 0.1, "correction": {"preset": "ppo-tis"}}
    config = harness.config(model={"dtype": "bfloat16"}, learner=learner, staleness={"kappa": "auto"})
    harness.submit(config, PROMPTS)
    harness.work(config)
    train(config, threading.Event())
    finished(harness, config)
    lines = metrics.read(config.run.dir / "metrics.jsonl")
    assert {line.old_exact_fraction for line in lines} == {1.0}, "one process made all versions"
    assert AutoModelForCausalLM.from_pretrained(config.run.dir / "model").dtype == torch.bfloat16


@pytest.mark.slow
def test_a_guard_that_acts_says_so_takes_no_steps_and_begins_anew_with_a_restart(harness: LearnerHarness) -> None:
    config = harness.config(learner={"guard": "act", "batch_groups": 2})
    harness.submit(config, 2 * MEMORY + 2)
    harness.work(config, logprob=-0.1)
    train(config, threading.Event())
    harness.submit(config, 2 * MEMORY + 2, name="more")
    train(config, threading.Event())

    lines = metrics.read(config.run.dir / "metrics.jsonl")
    assert [line.version for line in lines if line.alarm] == [MEMORY, MEMORY + 1, 2 * MEMORY + 1, 2 * MEMORY + 2]
    assert "lower learner.lr or staleness.s" in lines[-1].alarm
    assert {line.lr for line in lines} == {0.0}, "the tokens are much likelier for the worker than for the learner"
    model = AutoModelForCausalLM.from_pretrained(config.run.dir / "model")
    base = AutoModelForCausalLM.from_pretrained(config.base_model).state_dict()
    assert all(torch.equal(weight, base[name]) for name, weight in model.state_dict().items())


@pytest.mark.slow
def test_sigterm_keeps_what_was_trained_and_a_second_start_goes_on(harness: LearnerHarness) -> None:
    config = harness.config(learner={"checkpoint_updates": 1000})
    harness.submit(config, PROMPTS)
    harness.work(config, generation_s=0.1)
    queue = harness.queue(config)
    learner = harness.learn(config)
    wait_until(lambda: queue.status().learner.number >= 2, "two updates")
    learner.terminate()
    learner.join(30)
    assert learner.exitcode == 0
    kept = checkpoint.trained_ids(harness.store(config))
    assert 8 <= len(kept) == queue.audit().trained < PROMPTS
    learner = harness.learn(config)
    learner.join(120)
    assert learner.exitcode == 0
    finished(harness, config)
    assert checkpoint.trained_ids(harness.store(config))[: len(kept)] == kept


@pytest.mark.slow
@pytest.mark.parametrize("s", [0, 3])
def test_a_learner_killed_at_many_moments_trains_every_prompt_exactly_once(harness: LearnerHarness, s: int) -> None:
    config = harness.config(staleness={"s": s}, learner={"checkpoint_updates": 2})
    harness.submit(config, PROMPTS)
    harness.work(config, generation_s=0.02)
    harness.work(config, name="w2", generation_s=0.03)
    queue = harness.queue(config)
    for after_s in (0.0, 0.005, 0.03, 0.1, 0.25, 0.5):
        before = queue.status().learner.lineage
        learner = harness.learn(config)
        wait_until(lambda before=before: queue.status().learner.lineage > before, "a new lineage")
        time.sleep(after_s)
        learner.kill()
        learner.join(120)
        assert queue.audit().ok
    learner = harness.learn(config)
    learner.join(60)
    assert learner.exitcode == 0
    finished(harness, config)


def test_a_learner_that_was_taken_over_stops_at_once(harness: LearnerHarness) -> None:
    config = harness.config()
    harness.submit(config, PROMPTS)
    queue = harness.queue(config)
    harness.work(config)
    older = open_loop(config, harness.store(config), Team.alone(), torch.device("cpu"))
    open_loop(config, harness.store(config), Team.alone(), torch.device("cpu"))
    older.leader.broadcast.start()
    with pytest.raises(FencedError):
        older.run(threading.Event())
    older.leader.broadcast.close()
    assert queue.audit().ok


@pytest.mark.parametrize(
    ("prompts", "missing"), [(PROMPTS, "no worker lives; 8 tasks and 34 prompts wait"), (0, "no prompts have been")]
)
def test_waiting_in_vain_ends_with_who_is_missing(harness: LearnerHarness, prompts: int, missing: str) -> None:
    config = harness.config(queue={"stall_deadline_s": 1.0})
    if prompts:
        harness.submit(config, prompts)
    with pytest.raises(DeadlineError) as error:
        train(config, threading.Event())
    assert missing in str(error.value)


def test_a_worker_with_another_models_tokens_is_named_after_one_batch(harness: LearnerHarness) -> None:
    config = harness.config(queue={"stall_deadline_s": 4.0})
    harness.submit(config, PROMPTS)
    harness.work(config, name="stranger", vocabulary=10 * VOCABULARY)
    with pytest.raises(EchoQueueError, match="groups in a row could not be trained") as error:
        train(config, threading.Event())
    assert "worker stranger" in str(error.value)
    audit = harness.queue(config).audit()
    assert (audit.ok, audit.dead, audit.trained) == (True, 0, 0), "it was the worker, not the prompts"


def test_one_worker_that_sends_nothing_good_stops_no_run_and_kills_no_prompt(harness: LearnerHarness) -> None:
    """It is faster than the honest one, so that its groups come first and in long rows."""
    config = harness.config()
    harness.submit(config, PROMPTS)
    queue = harness.queue(config)
    harness.work(config, generation_s=0.02)
    wait_until(lambda: queue.status().workers, "the honest worker")
    harness.work(config, name="stranger", vocabulary=10 * VOCABULARY)
    train(config, threading.Event())
    finished(harness, config)
    status = queue.status()
    assert status.dead == 0
    told = {worker.name: worker.suspended for worker in status.workers}
    assert "groups in a row could not be trained" in told["stranger"] and not told["w1"]


def test_a_learner_is_heard_while_it_loads_its_model(harness: LearnerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and the controller of a fleet wait for it, however long that takes."""
    config = harness.config()
    queue = harness.queue(config)
    beats: list[bytes] = []

    class LoadedError(Exception):
        pass

    def load(*_: object) -> NoReturn:
        for _ in range(2):
            wait_until(lambda: queue.learner_beat() not in (b"", *beats), "a sign of life")
            beats.append(queue.learner_beat())
        raise LoadedError

    monkeypatch.setattr(training_loop, "load_policy", load)
    with pytest.raises(LoadedError):
        train(config, threading.Event())
    assert queue.status().learner_silent_ms >= 0 and queue.status().learner.lineage == 0
    assert "lease sweeper" not in {thread.name for thread in threading.enumerate()}
