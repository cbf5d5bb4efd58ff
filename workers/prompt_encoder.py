"""Encodes prompts and observations as the token ids that the model reads, and decodes its tokens as text."""

from typing import TYPE_CHECKING

import numpy as np

from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.records import Message, PromptRow, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODEL_TURN = "(what the model says)"
"""Placeholder for the model's text in a conversation: the text that the template writes after it is read next."""


class PromptEncoder:
    """The model's tokenizer. `max_tokens`: the longest prompt."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    @classmethod
    def open(cls, folder: str, max_tokens: int) -> "PromptEncoder":
        """Opens the tokenizer of a model folder or hub name. Raises `ConfigError` if there is none."""
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(folder), max_tokens)
        except (OSError, ValueError) as error:
            what = f"has no tokenizer that can be opened: {str(error).strip().splitlines()[0]}"
            raise ConfigError(Problem("model.base", f"{folder} {what}", "save one into the model folder")) from None

    @property
    def stop_tokens(self) -> list[int]:
        stop = self._tokenizer.eos_token_id
        return [] if stop is None else [stop]

    @property
    def vocabulary(self) -> int:
        """The number of token ids that have a text: all ids below it."""
        return len(self._tokenizer)

    def encode(self, row: PromptRow) -> Tokens:
        """Encodes a row's prompt: text as it is, chat messages by the chat template. Returns [P] int32.

        Raises `PromptError` for a prompt that is empty or too long, or for chat messages without a chat template.
        """
        if isinstance(row.prompt, str):
            ids = self._tokenizer(row.prompt)["input_ids"]
        else:
            ids = self._ids(self._templated(row.prompt, add_generation_prompt=True))
        if not 0 < len(ids) <= self._max_tokens:
            what = f"has {len(ids)} tokens; model.max_prompt_tokens is {self._max_tokens}"
            raise PromptError(Problem("prompt", what, "raise model.max_prompt_tokens, or leave the prompt out"))
        return np.asarray(ids, dtype=np.int32)

    def observe(self, row: PromptRow, observation: str) -> Tokens:
        """Encodes an observation, to be read after a turn of the model with its stop token. Returns [O] int32.

        After a text prompt, the observation is encoded as it is. After chat, the result is what the template writes
        between that turn and the next: the turn's end, the observation as the user's message, and the head of the
        model's next turn.

        Raises `PromptError` for a template that does not keep the model's turns.
        """
        if isinstance(row.prompt, str):
            return np.asarray(self._ids(observation), dtype=np.int32)
        turns: list[Message] = [*row.prompt, {"role": "assistant", "content": MODEL_TURN}]
        answered: list[Message] = [*turns, {"role": "user", "content": observation}]
        ids = self._ids(self._text_after_model(answered, add_generation_prompt=True))
        end = self._ids(self._text_after_model(turns, add_generation_prompt=False))
        # The first token is left out if it is the stop token, which the model wrote already.
        closes = bool(end) and end[0] in self._tokenizer.all_special_ids
        return np.asarray(ids[1:] if closes else ids, dtype=np.int32)

    def _text_after_model(self, messages: list[Message], add_generation_prompt: bool) -> str:
        text = self._templated(messages, add_generation_prompt)
        _, found, after = text.partition(MODEL_TURN)
        if not found:
            fix = "use a chat template that renders the assistant's messages verbatim"
            raise PromptError(Problem("prompt", "the model's chat template leaves out the model's own turns", fix))
        return after

    def _templated(self, messages: list[Message], add_generation_prompt: bool) -> str:
        if self._tokenizer.chat_template is None:
            fix = "give its tokenizer a chat template, or submit text"
            raise PromptError(Problem("prompt", "consists of chat messages, but the model has no chat template", fix))
        return str(
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, tokenize=False)
        )

    def _ids(self, text: str) -> list[int]:
        """Encodes text without the special tokens that a tokenizer may put around a whole text."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, tokens: list[int]) -> str:
        """Decodes a completion for an environment, without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
