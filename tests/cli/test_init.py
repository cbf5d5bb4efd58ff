"""`echo-queue init` makes of anybody's prompts a configuration in which `config check` finds nothing wrong."""

import csv
import gzip
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from echo_queue.cli import main
from echo_queue.cli.init.guess import guessed, prompt_columns
from echo_queue.config.loading import load
from echo_queue.submission.configured_sets import chosen
from echo_queue.submission.declaration import opened
from tests.first_hour.home import Home

Rows = Sequence[dict[str, Any]]
SUMS = [(number % 40, number // 3) for number in range(600)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A folder with a model, and without a configuration."""
    home = Home(tmp_path, monkeypatch)
    home.remove("run.toml", "rewards.py", "prompts.jsonl")
    return home


def ends(*words: str) -> int:
    """Gives a command in this process. Returns its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["echo-queue", *words])
        main()
    assert isinstance(ended.value.code, int | None)
    return ended.value.code or 0


def gsm8k(path: Path) -> None:
    rows = [{"question": f"What is {a} and {b}?", "answer": f"It is so.\n#### {a + b:,}"} for a, b in SUMS]
    pq.write_table(pa.Table.from_pylist(rows), path)


def table(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["source", "problem", "solution"])
        writer.writerows([["book", f"Compute {a}-{b}", f"We get $\\boxed{{{a - b}}}$."] for a, b in SUMS])


def packed(path: Path) -> None:
    rows = [{"id": f"row {a} {b}", "problem": f"{a}+{b}?", "expected_answer": a + b} for a, b in SUMS]
    path.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode()))


def texts(path: Path) -> None:
    path.write_text(json.dumps([{"lines": f"a poem about {a} and {b}"} for a, b in SUMS[:30]]))


def instructions(path: Path) -> None:
    rows = [{"instruction": f"Name {a} {b}", "input": "in French" if a % 2 else "", "output": "mot"} for a, b in SUMS]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "gsm8k.parquet": (gsm8k, "math"),
    "table.csv": (table, "math"),
    "packed.jsonl.gz": (packed, "math"),
    "texts.json": (texts, "rewards:reward"),
    "alpaca.jsonl": (instructions, "rewards:reward"),
}
WRITTEN = "def reward(prompts, completions, **columns):\n    return [float(len(one)) for one in completions]\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_what_it_makes_of_a_file_is_a_configuration_with_nothing_wrong(
    home: Home, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    write, reward = FILES[name]
    write(home.folder / name)
    assert ends("init", name, "--model", "model") == 0
    said = capfd.readouterr().out
    assert f"reward: {reward}" in said
    assert said.endswith("\necho-queue config check run.toml\necho-queue run run.toml\n")
    if reward != "math":
        assert ends("config", "check", "run.toml") == 2
        assert "rewards:reward is not written yet" in capfd.readouterr().err
        home.text("rewards.py", WRITTEN)
    assert ends("config", "check", "run.toml") == 0
    checked = capfd.readouterr()
    assert "no problems found" in checked.out, checked.err


def test_what_is_held_out_is_never_trained(home: Home) -> None:
    gsm8k(home.folder / "gsm8k.parquet")
    assert ends("init", "gsm8k.parquet", "--model", "model") == 0
    config = load(home.folder / "run.toml", {})
    held, trained = (
        [row.prompt for _, rows in opened(config, prompts).scan(100) for row in rows] for prompts in chosen(config)
    )
    assert 20 < len(held) < 120 and len(held) + len(trained) == len(SUMS)
    assert not {str(prompt) for prompt in held} & {str(prompt) for prompt in trained}


def test_nothing_is_overwritten(home: Home, capfd: pytest.CaptureFixture[str]) -> None:
    texts(home.folder / "texts.json")
    home.text("run.toml", "mine")
    assert ends("init", "texts.json", "--model", "model") == 2
    assert "--out: run.toml is there already" in capfd.readouterr().err
    home.text("rewards.py", "mine")
    assert ends("init", "texts.json", "--model", "model", "--out", "other.toml") == 2
    said = capfd.readouterr().err
    assert "--reward: no reward can be guessed, and rewards.py is there already" in said
    assert "name its function: --reward rewards:FUNCTION" in said
    assert not (home.folder / "other.toml").exists()
    assert [(home.folder / name).read_text() for name in ("run.toml", "rewards.py")] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("words", "where", "what"),
    [
        ([], "FILE", "no prompts are named"),
        (["none.jsonl"], "none.jsonl", "cannot be read"),
        (["prompts.txt"], "prompts.source", "'prompts.txt' is not a source of prompts"),
        (["reasoning-gym:chain_sum"], "FILE", "is made by code"),
        (["two.jsonl"], "--prompt", "nothing tells which column of two.jsonl is the prompt: one, two"),
        (["two.jsonl", "--prompt", "three"], "--prompt", "not every row has a column three"),
        (["two.jsonl", "--prompt", "one", "--answer", "three"], "--answer", "not every row has a column three"),
        (["two.jsonl", "--prompt", "one"], "--model", "no model is named"),
        (["two.jsonl", "--prompt", "one", "--model", "model", "--reward", "mth"], "--reward", "'mth' is no reward"),
        (
            ["two.jsonl", "--prompt", "one", "--reward", "math"],
            "--answer",
            "nothing tells which column has the answers",
        ),
        (["chat.jsonl", "--model", "init"], "--model", "init makes a model for prompts that code makes"),
        (["chat.jsonl", "--model", "model"], "--model", "has no chat template, and the prompts are chat messages"),
        (["lists.jsonl"], "lists.jsonl", "has no rows of columns"),
    ],
)
def test_what_it_cannot_know_is_one_sentence_that_names_the_flag(
    home: Home, capfd: pytest.CaptureFixture[str], words: list[str], where: str, what: str
) -> None:
    home.text("two.jsonl", '{"one": "a", "two": "b"}\n')
    home.text("chat.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n')
    home.text("lists.jsonl", '["a"]\n')
    assert ends("init", *words) == 2
    said = capfd.readouterr().err
    assert said.count("✗") == 1 and f"{where}: " in said and what in said
    assert not (home.folder / "run.toml").exists()


def test_somebody_at_a_terminal_is_asked(home: Home) -> None:
    home.text("two.jsonl", '{"one": "a", "two": "b"}\n')
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "echo_queue.cli", "init", "two.jsonl"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        os.write(ours, b"two\nmodel\n\n")
        said, _ = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0, said.decode()
    config = load(home.folder / "run.toml", {})
    assert (config.model.base, config.prompts.map.columns) == ("model", {"prompt": "two"})
    assert config.environment.function == "rewards:reward" and (home.folder / "rewards.py").exists()


def test_a_file_elsewhere_and_a_configuration_elsewhere_find_one_another(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    texts(home.folder / "texts.json")
    assert ends("init", "texts.json", "--model", "model", "--out", "runs of mine/My one.toml") == 0
    said = capfd.readouterr().out
    folder = home.folder / "runs of mine"
    assert f"cd '{folder}' && echo-queue run 'My one.toml'" in said
    config = load(folder / "My one.toml", {})
    assert (config.run.name, config.prompts.source) == ("my-one", str(home.folder / "texts.json"))
    assert config.model.base == str(home.folder / "model")
    assert (folder / "rewards.py").exists()


def chats(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "a"} for role in roles]


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"id": "1", "question": "a", "text": "b"}, ["question"]),
        ({"n": 1, "whatever": "a"}, ["whatever"]),
        ({"a": "a", "b": "b"}, ["a", "b"]),
        ({"messages": chats("system", "user"), "note": "a"}, ["messages"]),
        ({"messages": chats("user", "assistant"), "note": "a"}, ["note"]),
        ({"question": " ", "text": "a"}, ["text"]),
        ({"n": 1}, []),
    ],
)
def test_the_column_of_the_prompt_is_known_by_its_name_or_is_the_only_text(
    row: dict[str, Any], columns: list[str]
) -> None:
    assert prompt_columns([row, row]) == columns


ASKED = "\n\nPut the final answer in \\boxed{}."


def test_what_the_user_says_of_the_reward_counts() -> None:
    rows = [{"prompt": "a", "target": "7"}]
    assert guessed(rows, "prompt", reward="rewards:mine").map == {}
    words = [{"prompt": "a", "city": "Paris"}]
    assert guessed(words, "prompt", "city", "math").map["columns"] == {"answer": "city"}


@pytest.mark.parametrize(
    ("row", "rules", "answer", "is_math"),
    [
        ({"prompt": "a", "answer": "1 #### 2"},
         {"extract": {"answer": "####\\s*(.+)"}, "template": "{prompt}" + ASKED}, "answer", True),
        ({"prompt": "a in \\boxed{}", "answer": "7"}, {}, "answer", True),
        ({"prompt": "a in \\boxed{}", "target": 7}, {"columns": {"answer": "target"}}, "answer", True),
        ({"prompt": "a", "answer": "Paris"}, {}, "answer", False),
        ({"prompt": "a", "answer": "in 1918"}, {}, "answer", False),
        ({"question": "a"}, {"columns": {"prompt": "question"}}, "", False),
        ({"prompt": "a", "completions": "b"}, {"columns": {"row_completions": "completions"}}, "", False),
        ({"prompt": "a", "answer": "\\frac{1}{2}"}, {"template": "{prompt}" + ASKED}, "answer", True),
    ],
)  # fmt: skip
def test_answers_that_a_computer_can_compare_are_found(
    row: dict[str, Any], rules: dict[str, Any], answer: str, *, is_math: bool
) -> None:
    guess = guessed([row, row], prompt_columns([row])[0] if "prompt" not in row else "prompt")
    assert (guess.map, guess.answer, guess.is_math) == (rules, answer, is_math)
