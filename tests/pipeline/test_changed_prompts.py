"""A user mends the prompts of a run, or adds some: the same command says what becomes of them, and its advice works."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.supervised_run import OWN_PROMPTS, TINY, SupervisedRun, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REWARD = """
def reward(prompts, completions, **columns):
    return [len(set(completion)) / 100 + float(answer) for completion, answer in zip(completions, columns["answer"])]
"""
LACKING = [{"prompt": f"Sort: {number}, 3, 1."} for number in range(16)]
MENDED = [row | {"answer": "1"} for row in LACKING]
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


def follow(run: SupervisedRun, command: str, **names: str) -> None:
    """Gives a command that was printed, with the names that it leaves open."""
    *settings, program, word, config = shlex.split(command)
    assert (program, word, Path(config)) == ("echo-queue", "run", TINY)
    run.environ |= dict(setting.split("=") for setting in settings)
    run.environ |= {key: names.get(value, value) for key, value in run.environ.items()}
    run.again()


def test_prompts_that_all_died_are_replaced_by_the_mended_ones(
    tmp_path: Path, begin: Callable[..., SupervisedRun]
) -> None:
    write(tmp_path, "own.jsonl", LACKING)
    run = begin()
    assert run.ends() == 3, run.told()
    assert "KeyError: 'answer'" in run.output.read_text()
    write(tmp_path, "own.jsonl", MENDED)
    run.again()
    assert run.ends() == 0, run.told()
    assert "own.jsonl has changed: the run begins anew with it" in told(run)
    assert sum(len(update.trained_ids) for update in run.updates()) == len(MENDED)
    assert len(list(run.config.run.dir.glob("services-*/redis"))) == 1, "what the run held before is there"


def test_a_source_that_has_changed_is_told_of_and_both_ways_out_work(
    tmp_path: Path, begin: Callable[..., SupervisedRun]
) -> None:
    """While the run continues, and once it is over."""
    write(tmp_path, "own.jsonl", MANY)
    run = begin()
    run.until(trained(1))
    run.process.terminate()
    assert run.ends() == 130
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

    write(tmp_path, "more.jsonl", FURTHER)
    before = run.updates()[-1].version
    follow(run, further, FILE="more.jsonl")
    assert run.ends() == 0, run.told()
    assert f"goes on from version {before} with the prompts of set own-2; a run of its own needs another" in told(run)
    ids = [task for update in run.updates() for task in update.trained_ids]
    assert sorted(ids) == sorted(
        [f"own/0/{index}" for index in range(len(MANY))] + [f"own-2/0/{index}" for index in range(len(FURTHER))]
    )

    write(tmp_path, "own.jsonl", FURTHER)
    run.environ |= {"ECHO_QUEUE_PROMPTS__SET": "own", "ECHO_QUEUE_PROMPTS__SOURCE": "own.jsonl"}
    follow(run, anew)
    assert run.ends() == 0, run.told()
    assert (tmp_path / "run-2" / "report.html").exists()
