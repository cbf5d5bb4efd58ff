"""Says which columns the reward needs of each prompt, and refuses a row without them before it enters the backlog.

A reward function's arguments are read in the text of its module. Where that does not lie on the submitter's machine, or
does not tell, the first prompts that fail do.
"""

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from echo_queue.config import Environment
from echo_queue.config.function_text import definition
from echo_queue.config.rewards import GIVEN, ON_REQUEST, named_code
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.solutions import COLUMNS, require_readable
from echo_queue.submission.sources.rows import SOUGHT_ROWS, BadRow, refuse
from echo_queue.submission.sources.source import PromptSource

TAKEN = "a name that the reward function gets from this program"
FIX_EACH = "give every row that column, or the argument a default"


class NeededColumns(NamedTuple):
    """These columns a reward needs of each row. They are empty where it needs none, or nobody can tell."""

    by: str = ""
    """The name of who needs one of them, for a person."""
    each: Mapping[str, str] = MappingProxyType({})
    """All of these columns, with the name of the function that needs each."""
    any_of: tuple[str, ...] = ()
    """At least one of these."""
    keywords: frozenset[str] = frozenset()
    """The keywords of a call that are no columns; empty if columns are no keywords."""
    read: Callable[[str], None] | None = None
    """Raises `ValueError` for a value that `by` cannot compare with; None if it takes any."""

    def lacking(self, row: PromptRow) -> str:
        """Returns what a row lacks, as the end of a sentence; empty if it lacks nothing."""
        columns = row.columns
        if self.any_of and columns.keys().isdisjoint(self.any_of):
            return f"has no column {' or '.join(self.any_of)}, with which {self.by} compares"
        for name, by in self.each.items():
            if name not in columns:
                return f"has no column {name}, which {by} needs"
        return ""

    def unfit(self, row: PromptRow) -> BadRow | None:
        """Returns why the reward of a row could not be computed, or None."""
        if what := self.lacking(row):
            return BadRow(what, "rename the column that has it" if self.any_of else FIX_EACH)
        if wrong := self.unreadable(row):
            return wrong
        if taken := self.taken(row.columns):
            return BadRow(f"has a column {', '.join(taken)}, {TAKEN}", "rename that column")
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

    def taken(self, columns: Iterable[str]) -> list[str]:
        """Returns those of these columns whose names a call has for something else."""
        return sorted(self.keywords.intersection(columns))


NOTHING = NeededColumns()
"""No column is needed, or nobody can tell."""


def needed_columns(environment: Environment) -> NeededColumns:
    """Returns what the environment's reward needs."""
    if environment.kind == "math":
        return NeededColumns("math", any_of=COLUMNS, read=require_readable)
    if environment.kind != "function":
        return NOTHING
    each, keywords = dict[str, str](), set(GIVEN)
    for where, reference in named_code(environment).items():
        if arguments := arguments_of(where, reference):
            each |= dict.fromkeys(sorted(arguments.needed - {*GIVEN, *ON_REQUEST}), reference)
            keywords |= arguments.named & set(ON_REQUEST)
    for where, reward in environment.reward_functions.items():
        if reward.judge:
            each |= dict.fromkeys(sorted({*reward.judge.asked} - {"prompt", "completion"}), f"the judge {where}")
    return NeededColumns(each=each, keywords=frozenset(keywords))


class Arguments(NamedTuple):
    """The arguments of a reward function: those that it needs, those that it names, and whether it takes any other."""

    needed: frozenset[str]
    named: frozenset[str]
    any_other: bool

    def refused(self, columns: Iterable[str]) -> list[str]:
        """Returns the keywords of a call with these columns that the function does not take."""
        return [] if self.any_other else sorted({*GIVEN, *columns} - self.named)


def arguments_of(where: str, reference: str) -> Arguments | None:
    """Returns the arguments of the function that the key `where` names; None where its text does not tell."""
    function = definition(where, reference)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.decorator_list:
        return None
    arguments = function.args
    needed = {argument.arg for argument in arguments.args[: max(0, len(arguments.args) - len(arguments.defaults))]}
    needed |= {one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default}
    named = frozenset(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))
    return Arguments(frozenset(needed), named, arguments.kwarg is not None)


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
