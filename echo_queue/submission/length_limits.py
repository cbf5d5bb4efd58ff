"""Checks that prompts fit the model, by the model's own files, before they enter the backlog.

Each prompt is written and counted as a rollout worker does it: chat messages by the chat template, text after what the
tokenizer writes before it. Nothing is checked where the model's folder has no `tokenizer.json` (a hub name). Where the
files do not name a special token that the chat template asks for, which the tokenizer's class may have, only the
contents of messages are counted, which is a lower bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from echo_queue.config import Config
from echo_queue.errors import Problem, PromptError, ServiceError, UnfitPromptError
from echo_queue.models.hub import reachable
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.prompt_encoding import PromptEncoding, embeddings_of, opening_of
from echo_queue.submission.sources.rows import SOUGHT_ROWS, by_kind
from echo_queue.submission.sources.source import PromptSource
from echo_queue.submission.tokenizer_files import NAMED_TOKENS, chat_template_of, special_tokens_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class PromptLimits:
    """The bounds that a model sets to prompts."""

    tokenizer: "Tokenizer"
    encoding: PromptEncoding
    tokens: int
    """The largest number of tokens in a prompt."""
    certain_bytes: int
    """An ASCII text of at most this many bytes is sure to fit; −1 where bytes do not tell."""
    stop: str | None = None
    """The token with which the tokenizer ends texts."""
    renders: bool = True
    """True if everything is known that the chat template writes."""
    key: str = "model.max_prompt_tokens"
    """The name of the key that sets the largest number of tokens."""

    def unfit(self, rows: Sequence[PromptRow]) -> Iterator[tuple[int, Problem]]:
        """Yields (position in `rows`, what is wrong) of the prompts that the model cannot take."""
        doubtful: dict[int, str] = {}
        for position, row in enumerate(rows):
            try:
                if not self._certain(text := self._text(row)):
                    doubtful[position] = text
            except PromptError as error:
                yield position, error.problems[0]
                if self.encoding.template is None:
                    return  # which concerns every chat alike
        encodings = self.tokenizer.encode_batch_fast(list(doubtful.values()), add_special_tokens=False)
        for position, encoding in zip(doubtful, encodings, strict=True):
            try:
                count = len(self.encoding.ids(rows[position].prompt, encoding.ids))
            except PromptError as error:
                yield position, error.problems[0]
            else:
                if count > self.tokens:
                    what = f"its prompt has {count} tokens, the model takes {self.tokens}"
                    yield position, Problem("prompt", what, f"shorten it, or raise {self.key}")

    def unknown_stop(self) -> Problem | None:
        """Returns a problem if the model has no embedding for the token that is to end its answers."""
        known = self.encoding.embeddings
        number = None if self.stop is None else self.tokenizer.token_to_id(self.stop)
        if known is None or number is None or number < known:
            return None
        what = f"its tokenizer ends answers with {self.stop}, id {number}, but the model knows only ids below {known}"
        return Problem("model.base", what, "enlarge its embeddings, or name a token that it knows as eos_token")

    def _text(self, row: PromptRow) -> str:
        if isinstance(row.prompt, str) or self.renders:
            return self.encoding.text(row.prompt)
        return "".join(message["content"] for message in row.prompt)

    def _certain(self, text: str) -> bool:
        return len(text) <= self.certain_bytes and text.isascii()


def limits_for(config: Config, set: str) -> PromptLimits | None:
    """Returns the limits of the prompts of a set, whose component may have one of its own. Raises as `limits_of`."""
    component = config.component_of(set)
    if component is None or not component.max_prompt_tokens:
        return limits_of(Path(config.base_model), config.model.max_prompt_tokens)
    found = limits_of(Path(config.base_model), component.max_prompt_tokens)
    key = f"mixture[{config.mixture.index(component)}].max_prompt_tokens"
    return found and replace(found, key=key)


def limits_of(model: Path, tokens: int) -> PromptLimits | None:
    """Returns the limits of the model in folder `model`, or None if the folder has no tokenizer.

    Raises `ServiceError` for a file that is not a tokenizer, or is damaged.
    """
    from tokenizers import Tokenizer

    path = model / "tokenizer.json"
    if not (reachable(path) and path.is_file()):
        return None
    try:
        text = path.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        what = f"is not a tokenizer: {error}"
        raise ServiceError(Problem(str(path), what, "build or fetch the model again")) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    template, special, embeddings = chat_template_of(model), special_tokens_of(model), embeddings_of(model)
    opening = opening_of(lambda probe, whole: tokenizer.encode(probe, add_special_tokens=whole).ids)
    every_id_is_known = embeddings is None or _largest_id(tokenizer) < embeddings
    bytes_tell = every_id_is_known and _is_byte_level(orjson.loads(text))
    return PromptLimits(
        tokenizer,
        PromptEncoding(template, opening, embeddings),
        tokens,
        tokens - len(opening) if bytes_tell else -1,
        special.get("eos_token"),
        template is None or template.variables.isdisjoint(set(NAMED_TOKENS) - special.keys()),
    )


def refuse_unfit(limits: PromptLimits | None, source: PromptSource, chunk: Chunk, rows: Sequence[PromptRow]) -> None:
    """Raises `UnfitPromptError` naming the first rows of a chunk that the model cannot take."""
    if limits is None:
        return
    found = sorted(islice(limits.unfit(rows), SOUGHT_ROWS), key=lambda one: one[0])
    if found:
        problems = [Problem(source.location(chunk, position), one.what, one.fix) for position, one in found]
        raise UnfitPromptError(*by_kind(problems))


def _largest_id(tokenizer: "Tokenizer") -> int:
    return max(tokenizer.get_vocab_size(with_added_tokens=False) - 1, *tokenizer.get_added_tokens_decoder(), 0)


def _is_byte_level(description: dict[str, Any]) -> bool:
    """True if every token of an ASCII text stands for at least one of its bytes: byte-level BPE, nothing prepended."""
    before = orjson.dumps(description["pre_tokenizer"])
    normalizer = description["normalizer"]
    unchanged = normalizer is None or normalizer["type"] in ("NFC", "NFKC")
    is_bpe = description["model"]["type"] == "BPE"
    return is_bpe and unchanged and b'"ByteLevel"' in before and b'"add_prefix_space":true' not in before
