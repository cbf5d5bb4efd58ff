"""Checks that prompts fit the model, by the model's own files, before they enter the backlog.

Text is counted with the special tokens that the tokenizer adds. Of chat messages only the contents are counted, which
is a lower bound: the rollout worker fills in the chat template. Nothing is checked where the model's folder has no
`tokenizer.json` (a hub name).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from echo_queue.connections.hub import reachable
from echo_queue.errors import Problem, ServiceError, UnfitPromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.rows import REPORTED_ROWS
from echo_queue.submission.sources.source import PromptSource

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class PromptLimits:
    """The bounds that a model sets to prompts."""

    tokenizer: "Tokenizer"
    tokens: int
    """The largest number of tokens in a prompt."""
    certain_bytes: int
    """An ASCII prompt of at most this many bytes has at most `tokens` tokens; −1 where bytes do not bound tokens."""
    chat: bool
    """True if the model has a chat template."""

    def excess(self, rows: Sequence[PromptRow]) -> Iterator[tuple[int, int]]:
        """Yields (position in `rows`, tokens) of the prompts that are too long."""
        doubtful = [(position, text) for position, row in enumerate(rows) if not self._certain(text := _text(row))]
        encodings = self.tokenizer.encode_batch_fast([text for _, text in doubtful])
        for (position, _), encoding in zip(doubtful, encodings, strict=True):
            if len(encoding) > self.tokens:
                yield position, len(encoding)

    def _certain(self, text: str) -> bool:
        return len(text) <= self.certain_bytes and text.isascii()


def limits_of(model: Path, tokens: int) -> PromptLimits | None:
    """Returns the limits of the model in folder `model`, or None if the folder has no tokenizer.

    Raises `ServiceError` for a file that is not a tokenizer.
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
    added = len(tokenizer.encode("").ids)
    certain_bytes = tokens - added if _is_byte_level(orjson.loads(text)) else -1
    return PromptLimits(tokenizer, tokens, certain_bytes, _has_chat_template(model))


def refuse_unfit(limits: PromptLimits | None, source: PromptSource, chunk: Chunk, rows: Sequence[PromptRow]) -> None:
    """Raises `UnfitPromptError` naming the first rows of a chunk that the model cannot take."""
    if limits is None:
        return
    problems = [
        Problem(
            source.location(chunk.first + position),
            f"its prompt has {tokens} tokens, the model takes {limits.tokens}",
            "shorten it, or raise model.max_prompt_tokens",
        )
        for position, tokens in islice(limits.excess(rows), REPORTED_ROWS)
    ]
    if not limits.chat:
        fix = "give its tokenizer a chat template, or submit text"
        chats = (position for position, row in enumerate(rows) if not isinstance(row.prompt, str))
        what = "its prompt is chat messages, but the model has no chat template"
        problems += [Problem(source.location(chunk.first + position), what, fix) for position in islice(chats, 1)]
    if problems:
        raise UnfitPromptError(*problems)


def _is_byte_level(description: dict[str, Any]) -> bool:
    """True if every token of an ASCII text stands for at least one of its bytes: byte-level BPE, nothing prepended."""
    before = orjson.dumps(description["pre_tokenizer"])
    normalizer = description["normalizer"]
    unchanged = normalizer is None or normalizer["type"] in ("NFC", "NFKC")
    is_bpe = description["model"]["type"] == "BPE"
    return is_bpe and unchanged and b'"ByteLevel"' in before and b'"add_prefix_space":true' not in before


def _has_chat_template(model: Path) -> bool:
    """True if a template is in one of the files where transformers looks for it."""
    if (model / "chat_template.jinja").exists() or (model / "additional_chat_templates").exists():
        return True
    config = model / "tokenizer_config.json"
    return config.is_file() and bool(orjson.loads(config.read_bytes()).get("chat_template"))


def _text(row: PromptRow) -> str:
    return row.prompt if isinstance(row.prompt, str) else "".join(message["content"] for message in row.prompt)
