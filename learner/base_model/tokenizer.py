"""A byte-level BPE tokenizer for generated tasks: their wording becomes a few tokens, their payload stays readable.

- The text that all prompts of a task begin with and the text that all end with are pieces of their own, so that each
  can merge into one token.
- A number stays together with the punctuation after it (`28.0, `), so a list costs one token per entry.
- Every byte has a token: any text can be encoded, and decoding restores it unchanged.
"""

import re
from collections.abc import Sequence
from itertools import chain, takewhile

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"
NUMBER = r"-?\d+(?:\.\d+)?[^\w\n]*"


def train_tokenizer(
    prompts: Sequence[Sequence[str]], others: Sequence[str], vocabulary: int, longest: int
) -> PreTrainedTokenizerFast:
    """Trains a tokenizer of at most `vocabulary` tokens, including one for each of the 256 bytes.

    `prompts`: those of each task. `others`: answers and observations. `longest`: the model's longest sequence, in
    tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*chain(*map(_wording, prompts)), NUMBER])), "isolated"),
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
    tokenizer.train_from_iterator([*chain(*prompts), *others], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )


def _wording(prompts: Sequence[str]) -> list[str]:
    """Returns patterns for the text that every prompt begins with and the text that every prompt ends with."""
    beginning = _shared_start(prompts)
    ending = _shared_start([prompt[len(beginning) :][::-1] for prompt in prompts])[::-1]
    # A number of which the prompts share only the last digits (".0") is payload.
    ending = re.sub(r"^[\d.]+", "", ending)
    return [_literal(text) for text in (beginning, ending) if text]


def _shared_start(texts: Sequence[str]) -> str:
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in columns)


def _literal(text: str) -> str:
    """Returns the pattern that matches exactly `text`, with escapes that both Python and Oniguruma understand."""
    return re.sub(r"([^\w\s])", r"\\\1", text)
