"""Problems and results as a person reads them at 80 columns, and in a file."""

import pytest
from rich.console import Console
from rich.text import Text

from echo_queue.errors import Problem
from echo_queue.launch.problem_output import print_problems, print_wrapped, with_file

PROBLEM = Problem("rollout.group_size", " ".join(["GRPO compares the samples"] * 5), "set 2 or more, " * 8)


def printed(*, terminal: bool) -> list[str]:
    console = Console(width=80, force_terminal=terminal, color_system=None, highlight=False)
    with console.capture() as capture:
        print_problems([PROBLEM], console)
        print_wrapped(console, Text("reward 0.28 → 0.95; mean lag 2.23 (of tokens 2.12, largest 4, bound 4); idle 11%"))
    return capture.get().splitlines()


def test_on_a_terminal_lines_end_at_spaces_and_go_on_indented() -> None:
    lines = printed(terminal=True)
    assert all(len(line) <= 80 for line in lines)
    assert [line[:6] for line in lines[:2]] == ["✗ roll", "  " + lines[1][2:6]] and lines[1][2] != " "
    fix = [line for line in lines if line.startswith("    ")]
    assert len(fix) == 2 and fix[0].startswith("    → set") and fix[1][4] != " "
    assert lines[-1].startswith("  ") and " ".join(lines[-2:]).split()[-1] == "11%"


def test_a_command_in_a_fix_names_the_file_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "`echo-queue config check CONFIG`, `redis-cli CONFIG SET x 1`, or `echo-queue run CONFIG`"
    assert with_file(said) == said
    monkeypatch.setattr("sys.argv", ["echo-queue", "plan", "fleet.toml"])
    assert with_file(said) == said
    monkeypatch.setattr("sys.argv", ["echo-queue", "status", "--run.x=other.toml", "my runs/first.toml"])
    assert with_file(said) == (
        "`echo-queue config check 'my runs/first.toml'`, `redis-cli CONFIG SET x 1`, "
        "or `echo-queue run 'my runs/first.toml'`"
    )


def test_a_file_gets_each_line_as_it_is() -> None:
    assert len(printed(terminal=False)) == 3
