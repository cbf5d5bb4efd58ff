"""Says which columns the reward needs of each prompt, and refuses a row without them before it enters the backlog.

A reward function's arguments are read in the text of its module. Where that does not lie on the submitter's machine, or
does not tell, the first prompts that fail do.
"""

import ast
from collections.abc import Collection, Sequence
from itertools import islice
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
            fix = "rename the column that has it" if self.any_of else FIX_EACH
            return BadRow(what, fix)
        compared = next((name for name in self.any_of if name in row.columns), None)
        value = None if compared is None else row.columns[compared]
        if compared is not None and (value is None or not str(value).strip()):
            return BadRow(f"has nothing in {compared}, with which {self.by} compares", "write it, or leave the row out")
        if self.keywords and (taken := sorted(row.columns.keys() & set(GIVEN))):
            what = f"has a column {', '.join(taken)}, a name that every reward function gets from this program"
            return BadRow(what, "rename that column")
        return None

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
    if not (needed.keywords or needed.any_of):
        return
    found = ((position, needed.unfit(row)) for position, row in enumerate(rows))
    bad = islice(
        ((source.location(chunk.first + position), wrong) for position, wrong in found if wrong), REPORTED_ROWS
    )
    refuse(bad)
