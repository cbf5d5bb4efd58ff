"""The model's chat template, which writes chat messages as the text that the model reads.

- The submission and the rollout workers render with this module, so what one accepts the other does not refuse. It
  needs neither torch nor transformers, and writes what transformers' `apply_chat_template` writes.
- Whatever a template raises is a `PromptError` of the one prompt that it was given.

Source: huggingface/transformers, docs/source/en/chat_templating_writing.md.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from echo_queue.errors import Problem, PromptError
from echo_queue.records import Message

MODEL_TURN = "(what the model says)"
"""Placeholder for the model's text in a conversation: the text that the template writes after it is read next."""
GOES_ON = "(what the assistant says next) "
"""Placeholder after the assistant's words that the model continues. A template that strips words removes its space."""
LONGEST_REASON = 300
"""Characters of a template's own words in an error."""


class ChatTemplate:
    """A template's text, and the special tokens that it may write: `bos_token` and others, by name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = special_tokens

    def prompt(self, messages: Sequence[Message]) -> str:
        """Returns the conversation up to where the model writes: in a turn of its own, or after the assistant's words.

        Raises `PromptError`.
        """
        *before, last = messages
        if last["role"] != "assistant":
            return self._render(messages, add_generation_prompt=True)
        going_on: Message = {"role": last["role"], "content": last["content"] + GOES_ON}
        text = self._render([*before, going_on], add_generation_prompt=False)
        head, found, tail = text.rpartition(GOES_ON.rstrip())
        if not found or last["content"].strip() not in head:
            fix = "end the conversation with a message of the user, or use a template that keeps the assistant's words"
            raise PromptError(Problem("prompt", "the model's chat template changes the assistant's last words", fix))
        return head if tail.startswith(" ") else head.rstrip()

    def after_model(self, messages: Sequence[Message], observation: str | None = None) -> str:
        """Returns what the template writes after the model's words: the turn's end and, if given, the observation.

        The observation is the user's message, and the head of the model's next turn comes after it. Raises
        `PromptError` for a template that does not keep the model's turns.
        """
        *before, last = messages
        turn: Message = {"role": "assistant", "content": MODEL_TURN}
        if last["role"] == "assistant":
            turn["content"] = last["content"] + MODEL_TURN
        else:
            before = [*messages]
        turns = [*before, turn]
        if observation is not None:
            turns.append({"role": "user", "content": observation})
        text = self._render(turns, add_generation_prompt=observation is not None)
        _, found, after = text.partition(MODEL_TURN)
        if not found:
            fix = "use a chat template that renders the assistant's messages verbatim"
            raise PromptError(Problem("prompt", "the model's chat template leaves out the model's own turns", fix))
        return after

    @property
    def variables(self) -> set[str]:
        """The names of the values that the template asks for; none for one that is no template."""
        try:
            return find_undeclared_variables(ENVIRONMENT.parse(self._source))
        except TemplateError:
            return set()

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        try:
            return self._compiled.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:  # a template may fail in any way that an expression of Python may
            what = f"the model's chat template refuses it: {_words(error)}"
            fix = "write messages that this template takes, or give the model's tokenizer another one"
            raise PromptError(Problem("prompt", what, fix)) from None

    @cached_property
    def _compiled(self) -> Template:
        return ENVIRONMENT.from_string(self._source)


def _words(error: Exception) -> str:
    said = " ".join(str(error).split())[:LONGEST_REASON]
    name = type(error).__name__
    return said if type(error) is TemplateError and said else f"{name}: {said}".rstrip(": ")


class GenerationTag(Extension):
    """`{% generation %}` marks what the model wrote, for masks that are not made here; the text is the same."""

    tags = {"generation"}  # noqa: RUF012 (an attribute of jinja2's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateNamespace(Namespace):
    """jinja2's namespace without names that begin with an underscore: Python itself looks some of them up."""

    def __init__(*args: Any, **named: Any) -> None:
        own, *values = args
        attributes = dict(*values, **named)
        for name in attributes:
            _require_plain(name)
        Namespace.__init__(own, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_plain(name)
        super().__setitem__(name, value)


def _require_plain(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore: {name}")


class Dictionary:
    """What `dict` is in a template: it makes dictionaries, and leads nowhere else."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*values)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: jinja2's own filter writes HTML's characters in another way."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _now,
        "dict": Dictionary(),
        "namespace": TemplateNamespace,
    }
    return environment


ENVIRONMENT = _environment()
