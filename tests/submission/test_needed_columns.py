"""A row whose reward could not be computed is refused with its line, before anything of its set is declared."""

import json
import re
from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.errors import PromptError
from echo_queue.submission.declaration import choose, scan

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


def scanned(config: Config, rows: list[dict[str, str]], **environment: str) -> int:
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
    with pytest.raises(PromptError, match=rf"more\.jsonl:5: {re.escape(said)}(.|\n)*more\.jsonl:6: ") as caught:
        scanned(config, [fine] * 4 + [lacking, lacking], **environment)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("function", ["rewards:hidden", "elsewhere:right"])
def test_a_function_that_does_not_tell_what_it_needs_refuses_no_row(config: Config, function: str) -> None:
    """Its module may lie on the workers' machines alone."""
    assert scanned(config, [{}] * 3, kind="function", function=function) == 1


@pytest.mark.parametrize("answer", [None, "", " "])
def test_an_answer_that_holds_nothing_is_refused_by_its_line(config: Config, answer: str | None) -> None:
    with pytest.raises(PromptError, match=r"more\.jsonl:2: has nothing in answer"):
        scanned(config, [{"answer": "0"}, {"answer": answer}], kind="math")  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["prompts", "completions", "completion_ids", "trainer_state"])
def test_a_column_with_a_name_that_every_function_gets_is_refused(config: Config, name: str) -> None:
    with pytest.raises(PromptError, match=rf"more\.jsonl:1: has a column {name}, a name(.|\n)*rename that column"):
        scanned(config, [{name: "x", "answer": "2"}], kind="function", function="rewards:right")
    assert scanned(config, [{name: "x", "answer": "2"}], kind="math") == 1
