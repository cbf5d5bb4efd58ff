"""Prompt rows as the token ids that the model reads, and its tokens as text."""

from typing import TYPE_CHECKING

import numpy as np

from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.records import Message, PromptRow, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODEL_TURN = "(what the model says)"
"""Stands in a conversation for the model's text; what the template writes behind it is what the model reads next."""


class Prompts:
    def __init__(self, tokenizer: "PreTrainedTokenizerBase", max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    @classmethod
    def open(cls, folder: str, max_tokens: int) -> "Prompts":
        """The tokenizer of a model folder or hub name."""
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(folder), max_tokens)
        except (OSError, ValueError) as error:
            what = f"has no tokenizer that opens: {str(error).strip().splitlines()[0]}"
            raise ConfigError(Problem("model.base", f"{folder} {what}", "save one into the model folder")) from None

    @property
    def stop_tokens(self) -> list[int]:
        stop = self._tokenizer.eos_token_id
        return [] if stop is None else [stop]

    @property
    def vocabulary(self) -> int:
        """Token ids below this have a text."""
        return len(self._tokenizer)

    def encode(self, row: PromptRow) -> Tokens:
        """Text as the tokenizer takes it, chat messages through its chat template: [P] int32.

        Raises `PromptError` for a prompt that is empty or too long, or chat without a chat template.
        """
        if isinstance(row.prompt, str):
            ids = self._tokenizer(row.prompt)["input_ids"]
        else:
            ids = self._ids(self._templated(row.prompt, add_generation_prompt=True))
        if not 0 < len(ids) <= self._max_tokens:
            what = f"has {len(ids)} tokens; model.max_prompt_tokens is {self._max_tokens}"
            raise PromptError(Problem("prompt", what, "raise it, or leave the prompt out"))
        return np.asarray(ids, dtype=np.int32)

    def observe(self, row: PromptRow, observation: str) -> Tokens:
        """What follows a turn of the model, stop token included, when the environment answers: [O] int32.

        For a text prompt the observation as it is. For chat what the template writes between that turn and the next:
        the turn's end, the observation as the user's message, and the head of the model's next turn. Raises
        `PromptError` for a template that does not keep the model's turns.
        """
        if isinstance(row.prompt, str):
            return np.asarray(self._ids(observation), dtype=np.int32)
        said: list[Message] = [*row.prompt, {"role": "assistant", "content": MODEL_TURN}]
        answered: list[Message] = [*said, {"role": "user", "content": observation}]
        ids = self._ids(self._behind_model(answered, add_generation_prompt=True))
        end = self._ids(self._behind_model(said, add_generation_prompt=False))
        closes = bool(end) and end[0] in self._tokenizer.all_special_ids  # the stop token, which the model wrote itself
        return np.asarray(ids[1:] if closes else ids, dtype=np.int32)

    def _behind_model(self, messages: list[Message], add_generation_prompt: bool) -> str:
        text = self._templated(messages, add_generation_prompt)
        _, found, behind = text.partition(MODEL_TURN)
        if not found:
            fix = "use one that renders what the assistant said word by word"
            raise PromptError(Problem("prompt", "the model's chat template leaves out the model's own turns", fix))
        return behind

    def _templated(self, messages: list[Message], add_generation_prompt: bool) -> str:
        if self._tokenizer.chat_template is None:
            fix = "give its tokenizer a chat template, or submit text"
            raise PromptError(Problem("prompt", "is chat messages, but the model has no chat template", fix))
        return str(
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, tokenize=False)
        )

    def _ids(self, text: str) -> list[int]:
        """Without the special tokens that a tokenizer may put around a whole text."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, tokens: list[int]) -> str:
        """Completion text as an environment sees it, without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
