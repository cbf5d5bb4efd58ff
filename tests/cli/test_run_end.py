"""What `echo-queue run` leaves behind and says once it is over: to the shell, the person, and the next `run`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echo_queue.cli.run.end import End, conclude, print_finished, print_stopped
from echo_queue.config import Config
from echo_queue.errors import AGAIN, DONE, HOPELESS
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.queue import Audit
from echo_queue.queue.dead_causes import DeadCause
from echo_queue.records import Version
from echo_queue.reporting import outcome
from echo_queue.reporting.evaluation_record import EvaluationRecord
from echo_queue.reporting.metrics import MetricsLog
from tests.cli.test_view import STATUS
from tests.synthetic import update

CONFIG = Path("run.toml")
NOTHING = "nothing was trained; the model is the base model"
CAUSES = (
    DeadCause("KeyError: 'solution'", 1_200, "set/0/7"),
    DeadCause("the environment returned nan as reward 0", 2, "set/0/8"),
    DeadCause("environment.timeout_s = 0.5 is over", 1, "set/0/9"),
    DeadCause("gone from the store", 1, "set/0/10"),
)
DEAD = sum(cause.tasks for cause in CAUSES)


def end(trained: int = 0, dead: int = 0, lost: int = 0) -> End:
    """The queue's answers at the end of a run that has nothing left to do. `lost`: of no prompt anything is known."""
    audit = Audit(
        submitted=trained + dead + lost,
        backlog=0,
        tasks=0,
        replay=0,
        trained=trained,
        dead=dead,
        open=dead,
        ready=0,
        in_hand=0,
        in_flight=0,
        evaluating=0,
        leases=0,
        leased=0,
        asked=0,
        evaluation=0,
        scored=0,
        concluded=0,
        lost=0,
        forged=0,
    )
    return End(audit, STATUS, CAUSES if dead else (), {})


@pytest.mark.parametrize(
    ("found", "code", "finished"),
    [
        (end(trained=8), DONE, True),
        (end(trained=8, dead=2), HOPELESS, False),
        (end(dead=2), HOPELESS, False),
        (end(trained=8, lost=1), AGAIN, False),
        (end(trained=8, dead=2, lost=1), AGAIN, False),
    ],
    ids=["all trained", "some died", "all died", "one is lost", "some died and one is lost"],
)
def test_the_exit_code_and_the_next_run_know_whether_every_prompt_was_trained(
    configure: Callable[..., Config], found: End, code: int, finished: bool
) -> None:
    config = configure()
    assert conclude(config, found, CONFIG) == code
    kept = outcome.read(config)
    assert kept and kept.finished is finished and kept.dead == found.dead


def test_prompts_that_died_are_told_with_their_commonest_reasons_and_what_to_do(
    configure: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure()
    conclude(config, end(dead=DEAD), CONFIG)
    said = " ".join(capsys.readouterr().out.split())
    assert "test: " + NOTHING in said
    assert f"✗ {DEAD:,} prompts died and are not in the model:" in said
    assert "1,200× KeyError: 'solution' (for example set/0/7)" in said
    assert "2× the environment returned nan" in said and "1× environment.timeout_s = 0.5" in said
    assert CAUSES[3].reason not in said and "1 more reason: redis-cli shows it" in said
    assert "→ fix that; `echo-queue run run.toml` then tries them again" in said
    page = (config.run.dir / "report.html").read_text(encoding="utf-8")
    assert f"<b>{DEAD:,}</b><span>prompts died and are not in the model</span>" in page


def test_the_end_tells_how_far_each_evaluation_has_come(
    configure: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure()

    def result(name: str, update: int, mean: float | None, **more: Any) -> bytes:
        return EvaluationResult(name, Version(1, update), update, update, 8, 1, mean=mean, **more).line

    lines = [
        result("hard", 0, 0.05),
        result("hard", 20, 0.1, given_up="no worker serves it"),
        result("hard", 40, 0.16, low=0.09, high=0.27),
        result("easy", 0, 1.0),
        result("broken", 0, None),
    ]
    EvaluationRecord(config.run.dir).add(lines)
    conclude(config, end(), CONFIG)
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "at version" in line] == [
        "easy: 1.00 at version 1.0",
        "hard: 0.05 at version 1.0 → 0.16 [0.09, 0.27] at version 1.40",
    ]


def test_the_paths_at_the_end_are_whole_lines_to_copy_whatever_they_contain(
    configure: Callable[..., Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("a folder of a long name " * 4) / "lr[0.1]"
    config = configure(folder)
    conclude(config, end(), CONFIG)
    concluded = capsys.readouterr().out.splitlines()
    kept = outcome.read(config)
    assert kept
    print_finished(config, kept)
    paths = [f"  model    {folder}/model", f"  report   {folder}/report.html", f"  metrics  {folder}/metrics.jsonl"]
    assert concluded[-3:] == paths
    finished = capsys.readouterr().out.splitlines()
    assert finished[1:] == [*paths, f"  To run it again from scratch, remove {folder}."]
    print_stopped(folder / "run.toml")
    assert capsys.readouterr().err == f"stopped; `echo-queue run {folder}/run.toml` continues it\n"


@pytest.mark.slow
def test_a_run_that_trained_something_does_not_call_its_model_the_base_model(
    configure: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure()
    MetricsLog(config.run.dir / "metrics.jsonl").write(update(1))
    assert conclude(config, end(trained=16, dead=DEAD), CONFIG) == HOPELESS
    said = capsys.readouterr().out
    assert "test: reward 0.17" in said and NOTHING not in said
    assert f"{DEAD:,} prompts died and are not in the model:" in said
    page = (config.run.dir / "report.html").read_text(encoding="utf-8")
    assert f"<b>{DEAD:,}</b><span>prompts died and are not in the model</span>" in page
