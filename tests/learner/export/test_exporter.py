"""While a run trains, versions become folders: every so many updates, and the best one, which must still be stored."""

import logging
import threading
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from echo_queue import failpoints, weights
from echo_queue.config import Config, Export
from echo_queue.config.checks import contradictions
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ConfigError
from echo_queue.evaluation.results import EvaluationResult, best_of
from echo_queue.models.exported import BEST, Mark, mark_of
from echo_queue.queue import Chunk, PromptSet
from echo_queue.records import PromptShard, Version
from echo_queue.reporting.evaluation_record import EvaluationRecord
from echo_queue.weights.catalogue import catalogue
from learner.export import exporter as module
from learner.export.exporter import Exporter
from learner.training_loop import train
from tests.learner.learner_harness import LearnerHarness
from tests.waiting import wait_until

HELD_OUT = "held"


def result(number: int, evaluation: str = HELD_OUT) -> EvaluationResult:
    version = Version(1, number)
    return EvaluationResult(
        evaluation=evaluation, version=version, round=1, update=number, prompts=1, samples=1, mean=0.5, best=True
    )


@pytest.fixture(autouse=True)
def as_important_as_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of low priority, an export would wait for all tests that run beside this one."""
    monkeypatch.setattr(module, "NICENESS", 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_exports_every_so_many_updates_and_its_best_version(harness: LearnerHarness) -> None:
    """The best version is one that retention would have removed while training went on."""
    config = harness.config(
        evaluation=[{"name": HELD_OUT, "source": "made up", "every_updates": 100, "samples": 2}],
        export={"every_updates": 4, "best": HELD_OUT, "keep": 1},
        weights={"anchor_every": 1},
        staleness={"s": 0},
    )
    harness.submit(config, 42)
    queue = harness.queue(config)
    queue.declare(PromptSet(HELD_OUT, "made up", order="held_out"), [Chunk(0, 0, 3)])
    queue.submit(HELD_OUT, 0, PromptShard("nowhere", 0, 3))
    harness.work(config)
    train(config, threading.Event())
    assert queue.status().finished
    best = best_of(EvaluationRecord(config.run.dir).read())[HELD_OUT]
    exports = config.run.dir / "exports"
    folders = {one.name for one in exports.iterdir() if one.is_dir() and not one.is_symlink()}
    assert folders == {"1.8", str(best.version)}, "of those of every four updates the newest one stays"
    assert (exports / BEST).readlink() == Path(str(best.version))
    assert best.version.number < 8, "it is an older one than the newest three"
    for version in folders:
        assert mark_of(exports / version) == Mark("test", version, adapter=False)
    newer, older, final, base = (
        AutoModelForCausalLM.from_pretrained(one)(torch.arange(1, 9).unsqueeze(0)).logits
        for one in (exports / "1.8", exports / BEST, config.run.dir / "model", config.base_model)
    )
    assert not torch.equal(newer, older) and not torch.equal(newer, final) and not torch.equal(newer, base)


@pytest.mark.slow
def test_what_waits_for_its_export_stays_in_the_store_while_training_goes_on(
    harness: LearnerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """… for as long as it waits: here nothing is exported at all.

    What a worker serves is spared as well, but one worker serves one version.
    """
    monkeypatch.setattr(Exporter, "work", lambda _: None)
    monkeypatch.setattr(Exporter, "ended", lambda _: None)
    monkeypatch.setattr(Exporter, "settle", lambda *_: None)
    spared, prune = dict[Version, set[Version]](), weights.prune

    def noting(store: ObjectStore, newest: Version, s: int, needed: Collection[Version]) -> list[Version]:
        spared[newest] = set(needed)
        return prune(store, newest, s, needed)

    monkeypatch.setattr(weights, "prune", noting)
    config = harness.config(export={"every_updates": 4}, weights={"anchor_every": 1}, staleness={"s": 0})
    harness.submit(config, 40)
    harness.work(config)
    train(config, threading.Event())
    waiting = {Version(1, 4), Version(1, 8)}
    assert waiting <= spared[max(spared)]
    assert waiting <= catalogue(harness.store(config)).keys()


STEPS = ("write export settings", "rename export settings", "run export", "link best", "rename best")


class Death(BaseException):
    """The end of the exporter's thread at a step."""


class DyingAt:
    """Ends the thread that takes this step, right after it."""

    def __init__(self, step: str) -> None:
        self.step = step

    def before(self, step: str, about: object) -> None:
        pass

    def after(self, step: str, about: object, answer: object) -> None:
        if step == self.step:
            raise Death


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_exporter_goes_on_where_the_one_before_has_died(
    harness: LearnerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = harness.config(export={"best": HELD_OUT}, evaluation=[{"name": HELD_OUT, "source": "made up"}])
    harness.submit(config, 8)
    harness.work(config)
    train(config.model_copy(update={"export": Export(), "evaluation": ()}), threading.Event())
    published = harness.queue(config).status().published
    assert published is not None
    best = config.run.dir / "exports" / BEST
    for step in STEPS:  # each goes on where the one before has died
        monkeypatch.setattr(failpoints, "observer", DyingAt(step))
        dying = begun(config, published.version)
        wait_until(lambda dying=dying: not dying.is_alive(), f"its death at {step}")
        with pytest.raises(Death):
            dying.check()
        assert best.is_symlink() == (step == STEPS[-1])
    monkeypatch.setattr(failpoints, "observer", None)
    best.unlink()
    last = begun(config, published.version)
    wait_until(lambda: not last.needed, "the link")
    last.check()
    last.close()
    assert best.readlink() == Path(str(published.version))
    assert mark_of(best) == Mark("test", str(published.version), adapter=False)


def begun(config: Config, version: Version) -> Exporter:
    """Returns an exporter that is told of the best version."""
    started = Exporter(config, Version(1, 0))
    started.start()
    started.found_best(result(version.number))
    return started


def exporter(directory: Path, **export: object) -> Exporter:
    values = {"run": {"name": "test", "dir": directory}, "model": {"base": "x"}, "export": export}
    return Exporter(Config.model_validate(values), Version(1, 0))


def test_a_version_is_due_once_so_many_updates_are_made_whichever_are_published(tmp_path: Path) -> None:
    Mark("test", "1.4", adapter=False).write(made(tmp_path / "exports" / "1.4"))
    values = {"run": {"name": "test", "dir": tmp_path}, "model": {"base": "x"}, "export": {"every_updates": 4}}
    resumed = Exporter(Config.model_validate(values), Version(2, 6))
    for number in (6, 7, 9, 10, 12, 17, 19, 20):
        resumed.published(Version(2, number))
    assert sorted(resumed.needed) == [Version(2, number) for number in (9, 12, 17, 20)]


def test_only_the_chosen_evaluation_says_which_version_is_best(tmp_path: Path) -> None:
    chosen = exporter(tmp_path, best=HELD_OUT)
    chosen.found_best(result(3, "another"))
    chosen.found_best(result(5))
    chosen.found_best(result(5))
    assert chosen.needed == {Version(1, 5)}
    none = exporter(tmp_path)
    none.found_best(result(5))
    none.published(Version(1, 100))
    assert not none.configured
    assert not none.needed


def test_an_export_that_fails_is_told_and_tried_again_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    (tmp_path / "exports").touch()
    failing = exporter(tmp_path, every_updates=1)
    failing.start()
    try:
        with caplog.at_level(logging.WARNING):
            failing.published(Version(1, 1))
            wait_until(lambda: not failing.needed, "the end of its attempts")
        failing.check()
        assert failing.is_alive()
        assert [line for line in caplog.messages if "File exists" in line] == caplog.messages
        assert len(caplog.messages) == module.ATTEMPTS
        assert f"version 1.1 was not exported to {failing.folder / '1.1'}, attempt 3 of 3" in caplog.messages[-1]
    finally:
        failing.close()
    assert not failing.is_alive()


def test_each_folder_is_uploaded_as_well_and_what_failed_is_uploaded_by_the_next_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bucket is away for a while: no export and no later upload fails for that."""
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    targets, away = list[str](), {"s3://bucket/models/1.2"}

    def run(_: Exporter, words: Sequence[str]) -> str | None:
        targets.append(words[-2])
        if words[-2].startswith("s3://"):
            return "the bucket is away" if words[-2] in away else None
        Mark("test", words[-3], adapter=False).write(made(Path(words[-2])))
        return None

    monkeypatch.setattr(Exporter, "_run", run)
    settings = {"every_updates": 1, "to": "s3://bucket/models", "keep": 2}
    first = finished(exporter(tmp_path, **settings), 1, 2, 3)
    local = [str(first.folder / f"1.{number}") for number in range(5)]
    sent = [f"s3://bucket/models/1.{number}" for number in range(5)]
    assert targets == [local[1], sent[1], local[2], *[sent[2]] * module.ATTEMPTS, local[3], sent[3]]
    assert "version 1.2 was not exported to s3://bucket/models/1.2, attempt 3 of 3: the bucket is away" in caplog.text
    away.clear()
    targets.clear()
    last = finished(exporter(tmp_path, **settings), 4)
    assert targets == [sent[2], local[4], sent[4]], "what was uploaded is not uploaded again"
    names = {one.name for one in last.folder.iterdir()}
    assert names == {"run.toml", "1.3", "1.4", ".1.3.uploaded", ".1.4.uploaded"}
    targets.clear()
    finished(exporter(tmp_path, **settings | {"to": "s3://bucket/others"}))
    assert targets == ["s3://bucket/others/1.3", "s3://bucket/others/1.4"]


def finished(begun: Exporter, *published: int) -> Exporter:
    """Lets an exporter do what waits for it and what is published, and closes it."""
    begun.start()
    for number in published:
        begun.published(Version(1, number))
    wait_until(lambda: not begun.needed, "the exports")
    begun.check()
    begun.close()
    return begun


@pytest.mark.parametrize("address", ["models", "s3://bucket", "s3://bucket/", "s3:bucket/a"])
def test_an_address_that_names_no_folder_of_a_bucket_is_refused_at_once(tmp_path: Path, address: str) -> None:
    with pytest.raises(ValidationError, match=r"export\.to"):
        exporter(tmp_path, every_updates=1, to=address)


def test_an_address_among_the_runs_own_objects_is_refused_before_a_learner_begins(tmp_path: Path) -> None:
    values = {
        "run": {"name": "test", "dir": tmp_path},
        "model": {"base": "x"},
        "store": {"url": "http://127.0.0.1:9", "bucket": "mine"},
        "redis": {"url": "redis://127.0.0.1:9"},
    }
    for to, refused in (("weights", True), ("exports", False)):
        config = Config.model_validate(values | {"export": {"every_updates": 1, "to": f"s3://mine/test/{to}"}})
        with pytest.raises(ConfigError, match="the objects that the run needs") if refused else nullcontext():
            Exporter(config, Version(1, 0))


def test_the_best_version_needs_an_evaluation_that_is_there() -> None:
    values = {"run": {"name": "test", "dir": "x"}, "model": {"base": "x"}, "export": {"best": "other"}}
    told = [str(one) for one in contradictions(Config.model_validate(values))]
    assert any("export.best: no evaluation is called other" in one for one in told)
    values["evaluation"] = [{"name": HELD_OUT, "source": "x"}]  # type: ignore[assignment]
    told = [str(one) for one in contradictions(Config.model_validate(values))]
    assert any("name one of held" in one for one in told)


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
