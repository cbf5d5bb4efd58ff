"""Prints problems for the person who must act."""

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from echo_queue.errors import Problem

PROBLEM, WARNING = ("✗ ", "bold red"), ("! ", "bold yellow")
"""The signs before a problem that must be mended, and before one that only weakens a promise."""


def print_problems(
    problems: Iterable[Problem], console: Console | None = None, sign: tuple[str, str] = PROBLEM
) -> None:
    """Prints one paragraph per problem on stderr. Long lines are wrapped, with an indent, on a terminal only."""
    console = console or Console(stderr=True, highlight=False)
    for problem in problems:
        head = Text.assemble(sign, (problem.where, "bold"), ": ", problem.what)
        fix = Text.assemble(("→ ", "green"), problem.fix)
        if console.is_terminal:
            console.print(head)
            console.print(Padding(fix, (0, 0, 0, 4)))
        else:
            console.print(head, soft_wrap=True)
            console.print(Text("    ") + fix, soft_wrap=True)
