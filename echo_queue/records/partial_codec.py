"""How far a task is, as bytes, packed as a group is (`codec`); and whether a worker may go on with it.

    u8 format | u32 header length | header (JSON) | per sample: tokens i32[T], logprobs f32[T]

- `decode` accepts exactly what `encode` makes, byte for byte, and takes at most 4 times the size cap.
- Whoever goes on with a draft checks it first (`check`): what it says comes from a machine nobody vouches for.
"""

from typing import Any

import numpy as np
import orjson

from echo_queue.records import Draft, Drafts, Logprobs, Span, Tokens
from echo_queue.records.group_codec import (
    FINISHES,
    FLOAT32,
    GROUP_MAX_BYTES,
    INT32,
    PREFIX,
    SAMPLES_MAX,
    arrays,
    count,
    header_of,
    ids,
    observed_of,
    packed,
    refuse,
    spans_of,
)
from echo_queue.records.validation import LOGPROB_MAX, LOGPROB_MIN, Limits, check_observed

FORMAT = 1
ORDER = ("task", "lineage", "samples")


def encode(drafts: Drafts) -> bytes:
    """Packs `drafts`; about 8 bytes per token. Raises `CodecError` for what is no draft."""
    samples = [
        [len(draft.tokens), draft.finish, [list(span) for span in draft.spans], [list(part) for part in draft.observed]]
        for draft in drafts.samples
    ]
    header = orjson.dumps({"task": drafts.task, "lineage": drafts.lineage, "samples": samples})
    parts = [PREFIX.pack(FORMAT, len(header)), header]
    for draft in drafts.samples:
        if len(draft.tokens) != len(draft.logprobs):
            refuse(f"a draft of {len(draft.tokens)} tokens has {len(draft.logprobs)} log-probabilities")
        observed_of([list(part) for part in draft.observed], draft.logprobs)
        parts += [packed(draft.tokens, INT32), packed(draft.logprobs, FLOAT32)]
    return b"".join(parts)


def decode(data: bytes, max_bytes: int = GROUP_MAX_BYTES) -> Drafts:
    """The drafts packed in `data`; their arrays are read-only views of these bytes. Raises `CodecError`."""
    header, start = header_of(data, FORMAT, ORDER, max_bytes)
    _check_header(header)
    lengths = [length for length, *_ in header["samples"]]
    expected = start + 8 * sum(lengths)
    if len(data) != expected:
        refuse(f"{len(data)} bytes where the header announces {expected}")
    _, *parts = arrays(data, start, 0, lengths)
    samples = tuple(
        _draft(parts[2 * place], parts[2 * place + 1], *words[1:]) for place, words in enumerate(header["samples"])
    )
    return Drafts(header["task"], header["lineage"], samples)


def versions(drafts: Drafts) -> tuple[int, int]:
    """The oldest and the newest version that made a token; there must be one."""
    numbers = [span.version for draft in drafts.samples for span in draft.spans]
    return min(numbers), max(numbers)


def tokens(drafts: Drafts) -> int:
    return sum(len(draft.tokens) for draft in drafts.samples)


def check(drafts: Drafts, limits: Limits) -> None:
    """Raises `CodecError` unless a worker of this configuration can have come that far."""
    if len(drafts.samples) != limits.samples:
        refuse(f"{len(drafts.samples)} samples; rollout.group_size is {limits.samples}")
    for draft in drafts.samples:
        _check_draft(draft, limits)


def _check_draft(draft: Draft, limits: Limits) -> None:
    length = len(draft.tokens)
    if length > limits.new_tokens or (draft.finish is None and length == limits.new_tokens):
        refuse(f"a draft of {length} tokens; model.max_new_tokens is {limits.new_tokens}")
    if draft.finish == "abort" or (draft.finish == "length" and length != limits.new_tokens):
        refuse(f"a draft of {length} tokens cannot have ended by {draft.finish}")
    if length and draft.tokens.max() >= limits.vocabulary:
        refuse(f"a token id is outside the model's vocabulary of {limits.vocabulary}")
    if length and not LOGPROB_MIN <= draft.logprobs.min() <= draft.logprobs.max() <= LOGPROB_MAX:
        refuse("a log-probability is none that anything was drawn with")
    check_observed("a draft", draft.observed, limits)


def _check_header(header: dict[str, Any]) -> None:
    if not isinstance(header["task"], str) or not header["task"]:
        refuse("task is no name")
    count(header["lineage"], "lineage")
    samples = header["samples"]
    if not isinstance(samples, list) or not 0 < len(samples) <= SAMPLES_MAX:
        refuse("there are no samples, or too many")
    for words in samples:
        if not isinstance(words, list) or len(words) != 4:
            refuse("a draft is not [length, finish, spans, observed]")
        count(words[0], "a draft's length")


def _draft(tokens: Tokens, logprobs: Logprobs, finish: object, spans: object, observed: object) -> Draft:
    if finish is not None and (not isinstance(finish, str) or finish not in FINISHES):
        refuse(f"a draft cannot finish by {finish!r}")
    if not np.isfinite(logprobs).all():
        refuse("a log-probability is not finite")
    end: Any = finish
    return Draft(ids(tokens), logprobs, _rising(spans, len(tokens)), observed_of(observed, logprobs), end)


def _rising(spans: object, length: int) -> tuple[Span, ...]:
    """As a sample's, but none before the first token; nobody goes back to older weights."""
    found = () if length == 0 and spans == [] else spans_of(spans, length)
    versions = [span.version for span in found]
    if bool(length) != bool(found) or versions != sorted(versions):
        refuse(f"a draft of {length} tokens is of versions {versions}")
    return found
