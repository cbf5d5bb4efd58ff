"""Prompt rows as the token ids that the model reads, and its tokens as text."""

from typing import TYPE_CHECKING

import numpy as np

from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.records import PromptRow, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        elif self._tokenizer.chat_template is None:
            mend = "give its tokenizer a chat template, or submit text"
            raise PromptError(Problem("prompt", "is chat messages, but the model has no chat template", mend))
        else:
            ids = self._tokenizer.apply_chat_template(row.prompt, add_generation_prompt=True, return_dict=False)
        if not 0 < len(ids) <= self._max_tokens:
            what = f"has {len(ids)} tokens; model.max_prompt_tokens is {self._max_tokens}"
            raise PromptError(Problem("prompt", what, "raise it, or leave the prompt out"))
        return np.asarray(ids, dtype=np.int32)

    def decode(self, tokens: list[int]) -> str:
        """Completion text as an environment sees it, without special tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
