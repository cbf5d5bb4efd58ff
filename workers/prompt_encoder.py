"""Encodes prompts and observations as the token ids that the model reads, and decodes its tokens as text.

Whatever is wrong with a prompt or an observation is a `PromptError`, which concerns its task alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.records import PromptRow, Tokens
from echo_queue.submission.chat_template import ChatTemplate
from echo_queue.submission.prompt_encoding import PromptEncoding, embeddings_of, opening_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptEncoder:
    """The model's tokenizer. `max_tokens`: the longest prompt; `embeddings`: the number of ids that the model has."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", max_tokens: int, embeddings: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._encoding = PromptEncoding(_template(tokenizer), opening_of(self._ids), embeddings)

    @classmethod
    def open(cls, folder: str, max_tokens: int) -> "PromptEncoder":
        """Opens the tokenizer of a model folder or hub name. Raises `ConfigError` if there is none."""
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(folder), max_tokens, embeddings_of(Path(folder)))
        except (OSError, ValueError) as error:
            what = f"has no tokenizer that can be opened: {str(error).strip().splitlines()[0]}"
            raise ConfigError(Problem("model.base", f"{folder} {what}", "save one into the model folder")) from None

    @property
    def stop_tokens(self) -> list[int]:
        stop = self._tokenizer.eos_token_id
        return [] if stop is None else [stop]

    @property
    def vocabulary(self) -> int:
        """The number of token ids that have a text and that the model knows: all ids below it."""
        return min(len(self._tokenizer), self._encoding.embeddings or len(self._tokenizer))

    def encode(self, row: PromptRow) -> Tokens:
        """Encodes a row's prompt, by the rules of `PromptEncoding`. Returns [P] int32.

        Raises `PromptError` for a prompt that is empty or too long, that the chat template refuses, or that the model
        has no token for.
        """
        ids = self._encoding.ids(row.prompt, self._ids(self._encoding.text(row.prompt)))
        if not 0 < len(ids) <= self._max_tokens:
            what = f"has {len(ids)} tokens; model.max_prompt_tokens is {self._max_tokens}"
            raise PromptError(Problem("prompt", what, "raise model.max_prompt_tokens, or leave the prompt out"))
        return np.asarray(ids, dtype=np.int32)

    def observe(self, row: PromptRow, observation: str) -> Tokens:
        """Encodes an observation, to be read after a turn of the model with its stop token. Returns [O] int32.

        After a text prompt, the observation is encoded as it is. After chat, the result is what the template writes
        between that turn and the next: the turn's end, the observation as the user's message, and the head of the
        model's next turn.

        Raises `PromptError` for a template that does not keep the model's turns, or that refuses the observation.
        """
        if isinstance(row.prompt, str):
            ids = self._ids(observation)
        else:
            chat = self._encoding.chat()
            ids = self._ids(chat.after_model(row.prompt, observation))
            end = self._ids(chat.after_model(row.prompt))
            # The first token is left out if it is the stop token, which the model wrote already.
            if end and end[0] in self._tokenizer.all_special_ids:
                ids = ids[1:]
        self._encoding.require_known(ids, "observation")
        return np.asarray(ids, dtype=np.int32)

    def _ids(self, text: str, whole: bool = False) -> list[int]:
        """Encodes text; only if it is `whole`, with the special tokens that a tokenizer may put around a whole one."""
        try:
            ids: list[int] = self._tokenizer(text, add_special_tokens=whole)["input_ids"]
        except Exception as error:  # a tokenizer without an unknown token raises for what it does not know
            what = f"the model's tokenizer refuses it: {type(error).__name__}: {error}"
            raise PromptError(Problem("prompt", what, "leave out what it does not know")) from None
        return ids

    def decode(self, tokens: list[int]) -> str:
        """Decodes a completion for an environment, without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def _template(tokenizer: "PreTrainedTokenizerBase") -> ChatTemplate | None:
    """Returns the tokenizer's chat template; of several, the one called `default`."""
    found = tokenizer.chat_template
    source = found.get("default") if isinstance(found, Mapping) else found
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return None if source is None else ChatTemplate(source, special)
