"""Prints problems for the person who must act: where, what, and the mend."""

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from echo_queue.errors import Problem


def show(problems: Iterable[Problem], console: Console | None = None) -> None:
    """On stderr, one paragraph per problem; long lines wrap under their own paragraph."""
    console = console or Console(stderr=True, highlight=False)
    for problem in problems:
        head = Text.assemble(("✗ ", "bold red"), (problem.where, "bold"), ": ", problem.what)
        console.print(head, soft_wrap=not console.is_terminal)
        mend = Text.assemble(("→ ", "green"), problem.mend)
        console.print(Padding(mend, (0, 0, 0, 4)), soft_wrap=not console.is_terminal)
