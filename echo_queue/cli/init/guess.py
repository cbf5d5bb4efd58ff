"""Guesses from the first rows of a source which column is the prompt, which the answer, and who may score it.

All of it is a function of the rows. A guess says how it came about; where there is none, the user is asked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from echo_queue.config.rewards import GIVEN, ON_REQUEST
from echo_queue.submission.solutions import COLUMNS, require_readable

PROMPTS = ("prompt", "question", "problem", "instruction", "query", "messages", "input", "text", "content", "task")
ANSWERS = (
    *("answer", "solution", "final_answer", "expected_answer", "ground_truth", "reference", "target", "gold", "label"),
    *("output", "response", "completion"),
)
HASHES = r"####\s*(.+)"
"""What stands before the answer in a solution of GSM8K."""
BOXED = "\\boxed{"
MATHEMATICAL = re.compile(r"[\s$%().,/^*+\\{}0-9a-z=-]*\d[\s$%().,/^*+\\{}0-9a-z=-]*")
WORD = re.compile(r"(?<!\\)\b[a-z]{2,}")
"""A word of plain text, which no bare number or expression has."""
ASKED = "{{{column}}}\n\nPut the final answer in \\boxed{{}}."

Row = Mapping[str, Any]


class Guess(NamedTuple):
    """Says what the columns are for."""

    map: Mapping[str, Any]
    """The keys of `[prompts.map]`."""
    answer: str
    """The column that the reward compares with, as the reward gets it; empty if none was found."""
    is_math: bool
    """True if math-verify can read every answer."""
    said: Sequence[str]
    """How each of it was guessed."""


def prompt_columns(rows: Sequence[Row]) -> list[str]:
    """Returns the columns that may be the prompt, the likeliest first; the only one, if its name or nothing else tells.

    Such a column has text, or chat messages that end with another than the assistant's, in every row.
    """
    fit = [name for name in shared(rows) if all(_is_prompt(row[name]) for row in rows)]
    named = [name for name in PROMPTS if name in fit]
    return named[:1] or fit


def guessed(rows: Sequence[Row], prompt: str, answer: str = "", reward: str = "") -> Guess:
    """Returns what rows whose prompt is in the column `prompt` are made prompts by. `answer`: the column to compare
    with; `reward`: who scores; what is empty is to be guessed."""
    said = [f"prompts: the column `{prompt}`"]
    columns, rules = dict[str, str](), dict[str, Any]()
    answer = answer or next(_answers(rows, prompt), "")
    texts = [str(row[answer]) for row in rows] if answer else []
    hashes = bool(texts) and all(re.search(HASHES, text) for text in texts)
    if hashes:
        texts = [re.findall(HASHES, text)[-1].strip() for text in texts]
        said.append(f"answers: what follows the last #### in the column `{answer}`")
    else:
        said.append(f"answers: the column `{answer}`" if answer else "answers: no column has them")
    is_math = reward == "math" if reward else bool(texts) and all(map(_is_math, texts))
    own = answer
    if is_math and answer and answer not in COLUMNS:
        own = COLUMNS[0]
        columns[own] = answer
    elif is_math and answer and answer != COLUMNS[0] and COLUMNS[0] in rows[0]:
        columns |= {COLUMNS[0]: answer, answer: COLUMNS[0]}
        own = COLUMNS[0]
    if hashes:
        rules["extract"] = {own: HASHES}
    if is_math and isinstance(rows[0][prompt], str) and not all(BOXED in str(row[prompt]) for row in rows):
        if re.fullmatch(r"[A-Za-z_]\w*", prompt):
            rules["template"] = ASKED.format(column=prompt)
    elif _is_alpaca(rows, prompt):
        rules["template"] = "{instruction}\n\n{input}"
        said[0] = "prompts: the columns `instruction` and `input`"
    if "template" not in rules and prompt != "prompt":
        columns["prompt"] = prompt
    for taken in (name for name in rows[0] if name in (*GIVEN, *ON_REQUEST) and not is_math):
        columns[f"row_{taken}"] = taken
    return Guess({"columns": columns} | rules if columns else rules, own, is_math, said)


def shared(rows: Sequence[Row]) -> list[str]:
    """Returns the columns that every row has, in the order of the first row."""
    return [name for name in rows[0] if all(name in row for row in rows)] if rows else []


def _answers(rows: Sequence[Row], prompt: str) -> Iterator[str]:
    for name in ANSWERS:
        if name in shared(rows) and name != prompt and all(_is_scalar(row[name]) for row in rows):
            yield name


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and bool(str(value).strip())


def _is_prompt(value: object) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    if not isinstance(value, list) or not value:
        return False
    told = all(
        isinstance(one, dict) and isinstance(one.get("content"), str) and isinstance(one.get("role"), str)
        for one in value
    )
    return told and value[-1]["role"] != "assistant"


def _is_alpaca(rows: Sequence[Row], prompt: str) -> bool:
    further = [row.get("input") for row in rows]
    return prompt == "instruction" and all(isinstance(one, str) for one in further) and any(further)


def _is_math(text: str) -> bool:
    """Returns whether a text is a number, an expression, or a solution that says its answer in a box."""
    if BOXED not in text and (not MATHEMATICAL.fullmatch(text) or WORD.search(text)):
        return False
    with suppress(ValueError):
        require_readable(text)
        return True
    return False
