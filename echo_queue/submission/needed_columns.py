"""Says which columns the reward needs of each prompt, and refuses a row without them before it enters the backlog.

A reward function's arguments are read in the text of its module. Where that does not lie on the submitter's machine, or
does not tell, the first prompts that fail do.
"""

import ast
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import NamedTuple

from echo_queue.config import Environment
from echo_queue.config.function_text import definition
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.solutions import COLUMNS, require_readable
from echo_queue.submission.sources.rows import SOUGHT_ROWS, BadRow, refuse
from echo_queue.submission.sources.source import PromptSource

GIVEN = ("prompts", "completions", "completion_ids", "trainer_state")
"""The keywords that every reward function gets, besides one for each column."""
FIX_EACH = "give every row that column, or the argument a default"


class NeededColumns(NamedTuple):
    """These columns a reward needs of each row. They are empty where it needs none, or nobody can tell."""

    by: str = ""
    """The name of who needs them, for a person: `math`, or that of the function."""
    each: tuple[str, ...] = ()
    """All of these columns."""
    any_of: tuple[str, ...] = ()
    """At least one of these."""
    keywords: bool = False
    """True if the columns are keywords of a call, of which some are `GIVEN`."""
    taken: frozenset[str] | None = None
    """The only keywords that the function takes; None if it takes any."""
    read: Callable[[str], None] | None = None
    """Raises `ValueError` for a value that `by` cannot compare with; None if it takes any."""

    def lacking(self, row: PromptRow) -> str:
        """Returns what a row lacks, as the end of a sentence; empty if it lacks nothing."""
        columns = row.columns
        if self.any_of and columns.keys().isdisjoint(self.any_of):
            return f"has no column {' or '.join(self.any_of)}, with which {self.by} compares"
        for name in self.each:
            if name not in columns:
                return f"has no column {name}, which {self.by} needs"
        return ""

    def unfit(self, row: PromptRow) -> BadRow | None:
        """Returns why the reward of a row could not be computed, or None."""
        if what := self.lacking(row):
            return BadRow(what, "rename the column that has it" if self.any_of else FIX_EACH)
        if wrong := self.unreadable(row):
            return wrong
        if self.keywords and (taken := sorted(row.columns.keys() & set(GIVEN))):
            what = f"has a column {', '.join(taken)}, a name that every reward function gets from this program"
            return BadRow(what, "rename that column")
        return None

    def unreadable(self, row: PromptRow) -> BadRow | None:
        """Returns why nothing can be compared with what the row has, or None."""
        compared = next((name for name in self.any_of if name in row.columns), None)
        if compared is None:
            return None
        value = row.columns[compared]
        if value is None or not str(value).strip():
            return BadRow(f"has nothing in {compared}, with which {self.by} compares", "write it, or leave the row out")
        try:
            if self.read is not None:
                self.read(str(value))
        except ValueError as error:
            what = f"its {compared} cannot be compared with: {error}"
            return BadRow(what, "write a number or an expression, such as 7 or \\frac{1}{2}, or leave the row out")
        return None

    def refused(self, columns: Collection[str]) -> list[str]:
        """Returns the keywords of a call with these columns that the function does not take."""
        return [] if self.taken is None else sorted({*GIVEN, *columns} - self.taken)


NOTHING = NeededColumns()
"""No column is needed, or nobody can tell."""


def needed_columns(environment: Environment) -> NeededColumns:
    """Returns what the environment's reward needs."""
    if environment.kind == "math":
        return NeededColumns("math", any_of=COLUMNS, read=require_readable)
    if environment.kind != "function":
        return NOTHING
    function = definition("environment.function", environment.function)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.decorator_list:
        return NeededColumns(keywords=True)
    arguments = function.args
    needed = {argument.arg for argument in arguments.args[: max(0, len(arguments.args) - len(arguments.defaults))]}
    needed |= {one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default}
    taken = frozenset(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))
    return NeededColumns(
        environment.function,
        each=tuple(sorted(needed - set(GIVEN))),
        keywords=True,
        taken=taken if arguments.kwarg is None else None,
    )


def refuse_lacking(needed: NeededColumns, source: PromptSource, chunk: Chunk, rows: Sequence[PromptRow]) -> None:
    """Raises `PromptError` naming the first rows of a chunk whose reward could not be computed."""
    if needed.keywords or needed.any_of:
        _refuse(needed.unfit, source, chunk, rows)


def refuse_unreadable(needed: NeededColumns, source: PromptSource, chunk: Chunk, rows: Sequence[PromptRow]) -> None:
    """Raises `PromptError` naming the first rows of a chunk that have what the reward needs, but in no use."""
    _refuse(needed.unreadable, source, chunk, rows)


def _refuse(
    judge: Callable[[PromptRow], BadRow | None], source: PromptSource, chunk: Chunk, rows: Sequence[PromptRow]
) -> None:
    found = ((position, judge(row)) for position, row in enumerate(rows))
    bad = islice(((source.location(chunk, position), wrong) for position, wrong in found if wrong), SOUGHT_ROWS)
    refuse(bad)
