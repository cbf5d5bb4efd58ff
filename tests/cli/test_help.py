"""The help has what nobody would guess, and has it where one looks for it."""

import re
from collections.abc import Iterator

from rich.markup import render
from typer.core import TyperCommand
from typer.main import get_command
from typer.testing import CliRunner

from echo_queue.cli.commands import app


def told(*command: str) -> str:
    """Returns the help, each of its cells in one line."""
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "300"}, catch_exceptions=False)
    assert done.exit_code == 0
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout)


def panels() -> dict[str, list[str]]:
    """Returns the commands of each panel, in order."""
    found = re.findall(r"^╭─ (.*?) ─+╮\n(.*?)^╰", told(), flags=re.MULTILINE | re.DOTALL)
    return {title: re.findall(r"^│ ([a-z-]+) ", rows, flags=re.MULTILINE) for title, rows in found}


def test_the_shells_completion_can_be_installed() -> None:
    assert "--install-completion" in told()


def test_a_command_that_changes_a_run_does_not_stand_among_those_that_look_at_it() -> None:
    places = {command: place for place, command in enumerate(panels()["Inspect and repair"])}
    look, change = ("status", "show", "audit", "healthy"), ("revive", "bury", "rewind")
    assert max(places[command] for command in look) < min(places[command] for command in change)


def test_a_generated_set_is_named_with_its_options_as_a_shell_takes_them() -> None:
    (example,) = re.findall(r"'(reasoning-gym:\S+ {.*?})'", told("submit"))
    assert example == 'reasoning-gym:chain_sum {"seed": 1, "size": 500}'


def texts(command: TyperCommand, path: str = "echo-queue") -> Iterator[tuple[str, str]]:
    """Yields every text of help with the command that has it, those of the commands below it included."""
    yield path, command.help or ""
    yield from ((path, getattr(parameter, "help", "") or "") for parameter in command.params)
    for name, below in getattr(command, "commands", {}).items():
        yield from texts(below, f"{path} {name}")


def test_no_word_in_brackets_is_lost_as_markup() -> None:
    lost = [(path, text) for path, text in texts(get_command(app)) if render(text).plain != text.replace("\\[", "[")]
    assert not lost
