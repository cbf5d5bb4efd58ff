"""Prints problems for the person who must act."""

import re
import shlex
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from echo_queue.errors import Problem

PROBLEM, WARNING = ("✗ ", "bold red"), ("! ", "bold yellow")
"""The signs before a problem that must be mended, and before one that only weakens a promise."""
COMMAND = re.compile(r"(echo-queue(?: [a-z-]+)+) CONFIG\b")
"""A command in a fix; `CONFIG` stands for the configuration's file."""


def print_problems(
    problems: Iterable[Problem], console: Console | None = None, sign: tuple[str, str] = PROBLEM
) -> None:
    """Prints one paragraph per problem on stderr. Long lines are wrapped, with an indent, on a terminal only."""
    console = console or Console(stderr=True, highlight=False)
    for problem in problems:
        print_wrapped(console, Text.assemble(sign, (problem.where, "bold"), ": ", with_file(problem.what)), 2)
        print_wrapped(console, Text.assemble("    ", ("→ ", "green"), with_file(problem.fix)), 4)


def with_file(text: str) -> str:
    """Returns the text with the file that this process was given in place of each command's `CONFIG`."""
    words = [] if {"plan", "simulate"} & set(sys.argv[1:2]) else sys.argv[1:]  # whose files are others
    file = next((word for word in words if word.endswith(".toml") and not word.startswith("-")), None)
    return text if file is None else COMMAND.sub(lambda found: f"{found[1]} {shlex.quote(file)}", text)


def print_wrapped(console: Console, text: Text, indent: int = 2) -> None:
    """Prints a text. On a terminal it is wrapped at spaces, and its further lines begin at column `indent`."""
    if not console.is_terminal:
        console.print(text, soft_wrap=True, highlight=False)
        return
    for paragraph in text.split("\n", allow_blank=True):
        for number, line in enumerate(paragraph.wrap(console, console.width - indent)):
            line.rstrip()
            console.print(Text(" " * indent if number else "") + line, soft_wrap=True, highlight=False)
