"""A byte-level BPE tokenizer for a generated task: its wording becomes a few tokens, its payload stays readable.

- What all prompts begin with and what they end with are pieces of their own, so each can merge into one token.
- A number keeps together with the punctuation after it (`28.0, `), so a list costs one token per entry.
- Every byte has a token: any text can be encoded, and decoding gives it back unchanged.
"""

import re
from collections.abc import Sequence
from itertools import takewhile

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"
NUMBER = r"-?\d+(?:\.\d+)?[^\w\n]*"


def train_tokenizer(
    prompts: Sequence[str], others: Sequence[str], vocabulary: int, room: int
) -> PreTrainedTokenizerFast:
    """At most `vocabulary` tokens, those of the 256 bytes included. `room`: the model's longest sequence, in tokens.

    `others`: answers, and what is said to them.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*_wording(prompts), NUMBER])), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*prompts, *others], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        model_max_length=room,
        clean_up_tokenization_spaces=False,
    )


def _wording(prompts: Sequence[str]) -> list[str]:
    """Patterns of the text that every prompt begins with, and of the text that every prompt ends with."""
    beginning = _shared_start(prompts)
    ending = _shared_start([prompt[len(beginning) :][::-1] for prompt in prompts])[::-1]
    # A number that the prompts have in common only by its last digits (".0") is payload.
    ending = re.sub(r"^[\d.]+", "", ending)
    return [_literal(text) for text in (beginning, ending) if text]


def _shared_start(texts: Sequence[str]) -> str:
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in columns)


def _literal(text: str) -> str:
    """The pattern of exactly `text`: every sign escaped, in a form that Python's and Oniguruma's expressions share."""
    return re.sub(r"([^\w\s])", r"\\\1", text)
