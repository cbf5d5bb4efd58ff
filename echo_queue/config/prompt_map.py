"""The section `[prompts.map]`: how the rows of a user's own files become prompts."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from echo_queue.config.keys import Section

COLUMN = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
"""A column in a template. Two pairs of braces stand for one pair; all other braces stand for themselves, as LaTeX's."""


def _expression(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise PydanticCustomError("bad_expression", f"is no regular expression: {error}") from None
    if groups > 1:
        raise PydanticCustomError("bad_expression", "has several groups, of which one is the answer: write (?:…)")
    return text


def _template(text: str) -> str:
    if text and not any(match[2] for match in COLUMN.finditer(text)):
        raise PydanticCustomError("bad_template", "names no column: every prompt would be the same")
    return text


def _range(bounds: tuple[float, float]) -> tuple[float, float]:
    if not bounds[0] <= bounds[1]:
        raise PydanticCustomError("bad_range", "ends below its beginning")
    return bounds


def _split(bounds: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= bounds[0] < bounds[1] <= 1:
        raise PydanticCustomError("bad_split", "is no part of 0 to 1, as [0.0, 0.9] is")
    return bounds


Expression = Annotated[str, AfterValidator(_expression)]
Range = Annotated[tuple[float, float], AfterValidator(_range)]


class PromptMap(Section):
    """The way from the rows of a file or a data set to prompts, in this order: columns get names, answers are taken out
    of text, rows are left out, and the prompt is written (docs/data.md)."""

    columns: dict[str, str] = Field(default={})
    """New names: `{ prompt = "question" }` calls the column `question` `prompt`. Other columns stay as they are."""
    extract: dict[str, Expression] = Field(default={})
    """Column → regular expression. The column becomes what its group has found last, without the spaces around it:
    `{ answer = "#### (.+)" }` takes GSM8K's answers. A row in which nothing is found is refused."""
    ranges: dict[str, Range] = Field(default={})
    """Column of numbers → the smallest and largest that is kept, such as `{ pass_rate = [0.1, 0.9] }`."""
    split: Annotated[tuple[float, float], AfterValidator(_split)] = (0.0, 1.0)
    """A part of the prompts. Each has a number of its own in 0 to 1, drawn from its text, and is kept if that is not
    below the first bound and below the second. `[0.0, 0.1]` and `[0.1, 1.0]` have no prompt in common: one for an
    evaluation, the other to train on."""
    template: Annotated[str, AfterValidator(_template)] = ""
    """The prompt, in which `{question}` stands for the column `question`. Other braces stay, and `{{x}}` writes
    `{x}`."""
    system: str = ""
    """A system message, which comes first in every prompt. A prompt of text becomes the user's message after it."""
    chat: bool = False
    """A prompt of text becomes the user's message of a chat, as models with a chat template expect it."""
    min_characters: int = Field(default=0, ge=0)
    """Rows with shorter prompts are left out, before a system message is added."""
    max_characters: int = Field(default=0, ge=0)
    """Rows with longer prompts are left out likewise. 0 keeps all."""

    @model_validator(mode="after")
    def _lengths(self) -> "PromptMap":
        if 0 < self.max_characters < self.min_characters:
            raise PydanticCustomError("bad_lengths", "max_characters is below min_characters: no prompt would be left")
        return self


UNMAPPED = PromptMap()
"""Rows are prompts as they are."""
