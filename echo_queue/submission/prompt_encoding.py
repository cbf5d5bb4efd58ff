"""The rules by which a prompt becomes the token ids that the model reads, the same at submission and in the workers.

- Text is read as it is, after what the tokenizer writes before a whole text (a BOS token); that is not written a second
  time if the text begins with it already. What a tokenizer writes after a whole text (EOS, a separator) is left out,
  because the model continues the prompt.
- Chat messages are read as the chat template writes them, which writes its special tokens itself.
- A prompt with a token that the model has no embedding for is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from echo_queue.errors import Problem, PromptError
from echo_queue.models.hub import reachable
from echo_queue.records import Message
from echo_queue.submission.chat_template import ChatTemplate

PROBE = "a"
"""A text that shows what a tokenizer writes around every text."""

Encode = Callable[[str, bool], Sequence[int]]
"""Encodes a text, with or without the special tokens that the tokenizer writes around a whole one."""


@dataclass(frozen=True)
class PromptEncoding:
    """What decides the ids of a prompt, besides the tokenizer: `opening`, the ids that it writes before a whole text.

    `embeddings`: the number of ids that the model has, from 0 on; None where it is not known.
    """

    template: ChatTemplate | None
    opening: tuple[int, ...] = ()
    embeddings: int | None = None

    def text(self, prompt: str | Sequence[Message]) -> str:
        """Returns the text that is encoded, without special tokens around it. Raises `PromptError`."""
        return prompt if isinstance(prompt, str) else self.chat().prompt(prompt)

    def chat(self) -> ChatTemplate:
        """Returns the chat template. Raises `PromptError` if the model has none."""
        if self.template is None:
            fix = "give its tokenizer a chat template, or submit text"
            raise PromptError(Problem("prompt", "consists of chat messages, but the model has no chat template", fix))
        return self.template

    def ids(self, prompt: str | Sequence[Message], encoded: Sequence[int]) -> list[int]:
        """Returns the prompt's ids. `encoded`: those of its `text`. Raises `PromptError` for one that is not known."""
        ids = list(encoded)
        if isinstance(prompt, str) and tuple(ids[: len(self.opening)]) != self.opening:
            ids = [*self.opening, *ids]
        self.require_known(ids, "prompt")
        return ids

    def require_known(self, ids: Sequence[int], where: str) -> None:
        """Raises `PromptError` if the model has no embedding for one of the ids."""
        if self.embeddings is not None and ids and (largest := max(ids)) >= self.embeddings:
            what = f"has the token id {largest}, but the model knows only ids below {self.embeddings} (its vocab_size)"
            fix = "leave that token's text out, or enlarge the model's embeddings for its tokenizer"
            raise PromptError(Problem(where, what, fix))


def opening_of(encode: Encode) -> tuple[int, ...]:
    """Returns the ids that a tokenizer writes before every whole text; none if it knows no letter."""
    try:
        whole, plain = list(encode(PROBE, True)), list(encode(PROBE, False))
    except Exception:  # a tokenizer of words alone, without one for those that are unknown
        return ()
    places = range(len(whole) - len(plain), -1, -1)
    return tuple(whole[: next((place for place in places if whole[place : place + len(plain)] == plain), 0)])


def embeddings_of(folder: Path) -> int | None:
    """Returns `vocab_size` of the model in `folder`; None where its config.json does not tell."""
    path = folder / "config.json"
    if not (reachable(path) and path.is_file()):
        return None
    try:
        described = orjson.loads(path.read_bytes())
        size = described.get("vocab_size") or described.get("text_config", {}).get("vocab_size")
    except (OSError, orjson.JSONDecodeError, AttributeError):
        return None
    return size if isinstance(size, int) and size > 0 else None
