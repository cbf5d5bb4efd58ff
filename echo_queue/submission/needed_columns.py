"""Says which columns the reward needs of each prompt, and refuses a row without them before it enters the backlog.

A reward function's arguments are read in the text of its module. Where that does not lie on the submitter's machine, or
does not tell, the first prompts that fail do.
"""

import ast
from collections.abc import Collection, Sequence
from typing import NamedTuple

from echo_queue.config import Environment
from echo_queue.config.function_text import definition
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.rows import REPORTED_ROWS, BadRow, refuse
from echo_queue.submission.sources.source import PromptSource

GIVEN = ("prompts", "completions", "completion_ids", "trainer_state")
"""The keywords that every reward function gets, besides one for each column."""
ANSWERS = ("answer", "solution")


class NeededColumns(NamedTuple):
    """These columns a reward needs of each row. They are empty where it needs none, or nobody can tell."""

    by: str = ""
    """The name of who needs them, for a person: `math`, or that of the function."""
    each: tuple[str, ...] = ()
    """All of these columns."""
    any_of: tuple[str, ...] = ()
    """At least one of these."""
    taken: frozenset[str] | None = None
    """The only keywords that the function takes; None if it takes any."""

    def lacking(self, row: PromptRow) -> str:
        """Returns what a row lacks, as the end of a sentence; empty if it lacks nothing."""
        columns = row.columns
        if self.any_of and columns.keys().isdisjoint(self.any_of):
            return f"has no column {' or '.join(self.any_of)}, with which {self.by} compares"
        for name in self.each:
            if name not in columns:
                return f"has no column {name}, which {self.by} needs"
        return ""

    def refused(self, columns: Collection[str]) -> list[str]:
        """Returns the keywords of a call with these columns that the function does not take."""
        return [] if self.taken is None else sorted({*GIVEN, *columns} - self.taken)


def needed_columns(environment: Environment) -> NeededColumns:
    """Returns what the environment's reward needs."""
    if environment.kind == "math":
        return NeededColumns("math", any_of=ANSWERS)
    if environment.kind != "function":
        return NeededColumns()
    function = definition("environment.function", environment.function)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.decorator_list:
        return NeededColumns()
    arguments = function.args
    needed = {argument.arg for argument in arguments.args[: max(0, len(arguments.args) - len(arguments.defaults))]}
    needed |= {one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default}
    taken = frozenset(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))
    return NeededColumns(
        environment.function,
        each=tuple(sorted(needed - set(GIVEN))),
        taken=taken if arguments.kwarg is None else None,
    )


def refuse_lacking(needed: NeededColumns, source: PromptSource, chunk: Chunk, rows: Sequence[PromptRow]) -> None:
    """Raises `PromptError` naming the first rows of a chunk whose reward could not be computed."""
    if not (needed.each or needed.any_of):
        return
    found = ((position, needed.lacking(row)) for position, row in enumerate(rows))
    fix = "rename the column that has it" if needed.any_of else "give every row that column, or the argument a default"
    bad = [(source.location(chunk.first + position), BadRow(what, fix)) for position, what in found if what]
    if bad:
        refuse(bad[:REPORTED_ROWS])
