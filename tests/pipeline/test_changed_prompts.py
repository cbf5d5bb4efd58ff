"""A user mends the prompts of a run, or adds some: the same command says what becomes of them, and its advice works."""

import json
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_store
from learner.recovery.checkpoint import trained_ids
from tests.pipeline.supervised_run import OWN_PROMPTS, TINY, SupervisedRun, serving, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REWARD = """
def reward(prompts, completions, **columns):
    return [len(set(completion)) / 100 + float(answer) for completion, answer in zip(completions, columns["answer"])]
"""
LACKING = [{"prompt": f"Sort: {number}, 3, 1."} for number in range(16)]
MANY = [{"prompt": f"Sort: {number}, 7, 1.", "answer": "1"} for number in range(60)]
FURTHER = [{"prompt": f"Sort: {number}, 8, 5.", "answer": "2"} for number in range(8)]


def write(directory: Path, name: str, rows: list[dict[str, str]]) -> None:
    (directory / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


@pytest.fixture
def begin(tmp_path: Path, start: Callable[..., SupervisedRun]) -> Callable[..., SupervisedRun]:
    """Starts the tiny run on `own.jsonl` with `reward`, which needs a column `answer`."""
    (tmp_path / "rewards.py").write_text(REWARD)

    def begin(**overrides: str) -> SupervisedRun:
        return start(**{f"ECHO_QUEUE_{key}": value for key, value in (OWN_PROMPTS | overrides).items()})

    return begin


def told(run: SupervisedRun) -> str:
    """Returns what the last command printed, as one line."""
    return " ".join(run.output.read_text().split())


def settings_of(run: SupervisedRun, command: str, **names: str) -> dict[str, str]:
    """Returns the variables of a command that was printed, with the names that it leaves open."""
    *settings, program, word, config = shlex.split(command)
    assert (program, word, Path(config)) == ("echo-queue", "run", TINY)
    environ = run.environ | dict(setting.split("=") for setting in settings)
    return environ | {key: names.get(value, value) for key, value in environ.items()}


def test_prompts_that_all_died_are_replaced_and_of_other_changes_is_told_with_two_ways_out(
    tmp_path: Path, begin: Callable[..., SupervisedRun]
) -> None:
    """Its terminal is closed in the middle, long before a checkpoint. A source that has changed is told of while the
    run continues, and once it is over."""
    write(tmp_path, "own.jsonl", LACKING)
    run = begin(LEARNER__CHECKPOINT_UPDATES="1000")
    assert run.ends() == 3, run.told()
    assert "KeyError: 'answer'" in run.output.read_text()

    write(tmp_path, "own.jsonl", MANY)
    run.again()
    run.until(trained(1))
    run.process.send_signal(signal.SIGHUP)
    assert run.ends() == 130
    assert "own.jsonl has changed: the run begins anew with it" in told(run)
    assert len(list(run.config.run.dir.glob("services-*/redis"))) == 1, "what the run held before is there"
    with serving(run.config):
        saved = trained_ids(connect_store(run.config))
    assert sorted(saved) == trained_by(run), "nothing is lost"

    write(tmp_path, "own.jsonl", [*MANY, *FURTHER])
    run.again()
    assert run.ends() == 0, run.told()
    said = told(run)
    stays = "! prompts.source: set own has arrived whole and stays as it is; own.jsonl is not submitted again: "
    what = f"{stays}prompts is 60, not 68 →"
    assert what in said
    assert said.index(what) < said.index("finishing")

    run.output.write_text("")
    run.again()
    assert run.ends() == 0
    said = told(run)
    assert "own.jsonl is not submitted again: it has changed since" in said
    further, anew = re.findall(r"`(ECHO_QUEUE\S+=.*? echo-queue run \S+)`", said)
    of_its_own = load(TINY, settings_of(run, anew))
    assert (of_its_own.run.dir.name, of_its_own.prompts.source) == ("run-2", "own.jsonl")

    write(tmp_path, "more.jsonl", FURTHER)
    before = run.updates()[-1].version
    run.environ = settings_of(run, further, FILE="more.jsonl")
    run.again()
    assert run.ends() == 0, run.told()
    assert f"goes on from version {before} with the prompts of set own-2; a run of its own needs another" in told(run)
    assert trained_by(run) == sorted(
        [f"own/0/{index}" for index in range(len(MANY))] + [f"own-2/0/{index}" for index in range(len(FURTHER))]
    )


def trained_by(run: SupervisedRun) -> list[str]:
    return sorted(task for update in run.updates() for task in update.trained_ids)
