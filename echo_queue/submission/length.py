"""Whether prompts fit the model, asked of its own tokenizer before they enter the backlog.

Text is counted with the special tokens that the tokenizer adds. For chat messages only their contents
are counted, a lower bound: the chat template belongs to the rollout worker. Where the model's folder has
no `tokenizer.json` (a hub name) nothing is checked here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from echo_queue.errors import Problem, PromptError, ServiceError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.rows import REPORTED_ROWS
from echo_queue.submission.sources import Source

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class LengthLimit:
    tokenizer: "Tokenizer"
    limit: int
    """Tokens that a prompt may have."""
    certain_bytes: int
    """An ASCII prompt of at most so many bytes has at most `limit` tokens; −1 where bytes bound nothing."""

    def excess(self, rows: Sequence[PromptRow]) -> Iterator[tuple[int, int]]:
        """Yields (position in `rows`, tokens) of the prompts that are too long."""
        doubtful = [(position, text) for position, row in enumerate(rows) if not self._certain(text := _text(row))]
        encodings = self.tokenizer.encode_batch_fast([text for _, text in doubtful])
        for (position, _), encoding in zip(doubtful, encodings, strict=True):
            if len(encoding) > self.limit:
                yield position, len(encoding)

    def _certain(self, text: str) -> bool:
        return len(text) <= self.certain_bytes and text.isascii()


def length_limit(model: Path, limit: int) -> LengthLimit | None:
    """The limit for the model in folder `model`; None if there is no tokenizer to ask."""
    from tokenizers import Tokenizer

    path = model / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        raise ServiceError(Problem(str(path), f"is no tokenizer: {error}", "make or fetch the model again")) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    added = len(tokenizer.encode("").ids)
    return LengthLimit(tokenizer, limit, limit - added if _is_byte_level(orjson.loads(text)) else -1)


def refuse_long(limit: LengthLimit | None, source: Source, chunk: Chunk, rows: Sequence[PromptRow]) -> None:
    """Raises `PromptError` naming the first rows of a chunk that do not fit."""
    if limit is None:
        return
    problems = []
    for position, tokens in islice(limit.excess(rows), REPORTED_ROWS):
        what = f"its prompt has {tokens} tokens, the model takes {limit.limit}"
        where = source.place(chunk.first + position)
        problems.append(Problem(where, what, "shorten it, or raise model.max_prompt_tokens"))
    if problems:
        raise PromptError(*problems)


def _is_byte_level(description: dict[str, object]) -> bool:
    """Whether every token of an ASCII text stands for at least one of its bytes: byte-level BPE, nothing prepended."""
    model, before = description["model"], orjson.dumps(description["pre_tokenizer"])
    normalizer = description["normalizer"]
    unchanged = normalizer is None or (isinstance(normalizer, dict) and normalizer["type"] in ("NFC", "NFKC"))
    is_bpe = isinstance(model, dict) and model["type"] == "BPE"
    return is_bpe and unchanged and b'"ByteLevel"' in before and b'"add_prefix_space":true' not in before


def _text(row: PromptRow) -> str:
    return row.prompt if isinstance(row.prompt, str) else "".join(message["content"] for message in row.prompt)
