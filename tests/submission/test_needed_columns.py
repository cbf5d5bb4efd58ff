"""A row whose reward could not be computed is refused with its line, before anything of its set is declared."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.errors import PromptError
from echo_queue.submission.configured_sets import choose
from echo_queue.submission.declaration import scan
from echo_queue.submission.solutions import DIGIT, PLAIN, read_solution

REWARDS = """
from functools import cache
def right(prompts, completions, answer, level=1, **columns): return [0.0 for _ in completions]
@cache
def hidden(*given, **columns): return []
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "run.toml").write_text('[run]\nname = "t"\ndir = "runs/t"\n[prompts]\nset = "p"\nchunk = 3\n')
    return load(tmp_path / "run.toml", {"ECHO_QUEUE_ENVIRONMENT__KIND": "math"})


def scanned(config: Config, rows: Sequence[dict[str, Any]], **environment: str) -> int:
    """Returns the number of chunks of a set of these rows that is submitted."""
    Path("more.jsonl").write_text("".join(json.dumps({"prompt": "1 + 1"} | row) + "\n" for row in rows))
    chosen = config.environment.model_copy(update=environment)
    _, chunks = scan(config.model_copy(update={"environment": chosen}), choose(config, "more.jsonl"), lambda _: None)
    return len(chunks)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"kind": "math"}, "has no column answer or solution, with which math compares"),
        ({"kind": "function", "function": "rewards:right"}, "has no column answer, which rewards:right needs"),
    ],
    ids=["math", "function"],
)
def test_the_rows_without_what_the_reward_needs_are_named_wherever_they_stand(
    config: Config, environment: dict[str, str], said: str
) -> None:
    fine, lacking = {"answer": "2"}, {"result": "2"}
    assert scanned(config, [fine] * 5, **environment) == 2
    with pytest.raises(PromptError, match=rf"more\.jsonl:5: {re.escape(said)}") as caught:
        scanned(config, [fine] * 4 + [lacking, lacking], **environment)
    [problem] = caught.value.problems
    assert re.search(r"the same in 1 other row: \S*more\.jsonl:6\)$", problem.what)


@pytest.mark.parametrize("function", ["rewards:hidden", "elsewhere:right"])
def test_a_function_that_does_not_tell_what_it_needs_refuses_no_row(config: Config, function: str) -> None:
    """Its module may lie on the workers' machines alone."""
    assert scanned(config, [{}] * 3, kind="function", function=function) == 1


@pytest.mark.parametrize("answer", [None, "", " "])
def test_an_answer_that_holds_nothing_is_refused_by_its_line(config: Config, answer: str | None) -> None:
    with pytest.raises(PromptError, match=r"more\.jsonl:2: has nothing in answer"):
        scanned(config, [{"answer": "0"}, {"answer": answer}], kind="math")


@pytest.mark.parametrize("answer", ["\\", "$$", "\\text{}"])
def test_an_answer_that_the_worker_could_not_read_is_refused_by_its_line(config: Config, answer: str) -> None:
    fine = [{"answer": "0"}, {"answer": r"$\frac{1}{2}$"}, {"answer": "so it is 7"}]
    assert scanned(config, fine, kind="math") == 1
    with pytest.raises(PromptError, match=r"more\.jsonl:4: its answer cannot be compared with: math-verify finds no"):
        scanned(config, [*fine, {"answer": answer}], kind="math")


@pytest.mark.parametrize(
    "text", ["-7", "1,234", "3:4", "( ( (1", "x^2 = 9", r"\frac{-1}{2}", r"-\dfrac{10}{3}", "50 %", "7é|"]
)
def test_what_is_not_read_ahead_is_what_the_worker_always_reads(text: str) -> None:
    assert PLAIN.fullmatch(text) and DIGIT.search(text)
    assert read_solution(text)


def test_the_first_row_of_a_generated_set_is_judged_as_any_other(config: Config) -> None:
    environment = config.environment.model_copy(update={"kind": "math"})
    chosen = choose(config, "reasoning-gym:chain_sum", options={"seed": 1, "size": 4})
    with pytest.raises(PromptError, match="chain_sum item 0: has no column answer or solution"):
        scan(config.model_copy(update={"environment": environment}), chosen, lambda _: None)


@pytest.mark.parametrize("name", ["prompts", "completions", "completion_ids", "trainer_state"])
def test_a_column_with_a_name_that_every_function_gets_is_refused(config: Config, name: str) -> None:
    with pytest.raises(PromptError, match=rf"more\.jsonl:1: has a column {name}, a name(.|\n)*rename that column"):
        scanned(config, [{name: "x", "answer": "2"}], kind="function", function="rewards:right")
    assert scanned(config, [{name: "x", "answer": "2"}], kind="math") == 1
