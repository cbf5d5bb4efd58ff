"""How far a task is, as bytes, packed as a group is (`codec`); and whether a worker may go on with it.

    u8 format | u32 header length | header (JSON) | per sample: tokens i32[T], logprobs f32[T]

- `decode` accepts exactly what `encode` makes, byte for byte, and takes at most 4 times the size cap.
- Whoever goes on with a partial checks it first (`check`): what it says comes from a machine nobody vouches for.
"""

from typing import Any

import numpy as np
import orjson

from echo_queue.records import Logprobs, PartialGroup, PartialSample, Span, Tokens
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
from echo_queue.records.validation import LOGPROB_MAX, LOGPROB_MIN, GroupLimits, check_observed

FORMAT = 1
ORDER = ("task", "lineage", "samples")


def encode(partials: PartialGroup) -> bytes:
    """Packs `partials`; about 8 bytes per token. Raises `CodecError` for what is no partial rollout."""
    samples = [
        [
            len(partial_sample.tokens),
            partial_sample.finish,
            [list(span) for span in partial_sample.spans],
            [list(part) for part in partial_sample.observed],
        ]
        for partial_sample in partials.samples
    ]
    header = orjson.dumps({"task": partials.task, "lineage": partials.lineage, "samples": samples})
    parts = [PREFIX.pack(FORMAT, len(header)), header]
    for partial_sample in partials.samples:
        if len(partial_sample.tokens) != len(partial_sample.logprobs):
            refuse(
                f"a partial of {len(partial_sample.tokens)} tokens has {len(partial_sample.logprobs)} log-probabilities"
            )
        observed_of([list(part) for part in partial_sample.observed], partial_sample.logprobs)
        parts += [packed(partial_sample.tokens, INT32), packed(partial_sample.logprobs, FLOAT32)]
    return b"".join(parts)


def decode(data: bytes, max_bytes: int = GROUP_MAX_BYTES) -> PartialGroup:
    """The partial rollouts packed in `data`; their arrays are read-only views of these bytes. Raises `CodecError`."""
    header, start = header_of(data, FORMAT, ORDER, max_bytes)
    _check_header(header)
    lengths = [length for length, *_ in header["samples"]]
    expected = start + 8 * sum(lengths)
    if len(data) != expected:
        refuse(f"{len(data)} bytes where the header announces {expected}")
    _, *parts = arrays(data, start, 0, lengths)
    samples = tuple(
        _partial(parts[2 * place], parts[2 * place + 1], *words[1:]) for place, words in enumerate(header["samples"])
    )
    return PartialGroup(header["task"], header["lineage"], samples)


def versions(partials: PartialGroup) -> tuple[int, int]:
    """The oldest and the newest version that made a token; there must be one."""
    numbers = [span.version for partial_sample in partials.samples for span in partial_sample.spans]
    return min(numbers), max(numbers)


def tokens(partials: PartialGroup) -> int:
    return sum(len(partial_sample.tokens) for partial_sample in partials.samples)


def check(partials: PartialGroup, limits: GroupLimits) -> None:
    """Raises `CodecError` unless a worker of this configuration can have come that far."""
    if len(partials.samples) != limits.samples:
        refuse(f"{len(partials.samples)} samples; rollout.group_size is {limits.samples}")
    for partial_sample in partials.samples:
        _check_partial(partial_sample, limits)


def _check_partial(partial_sample: PartialSample, limits: GroupLimits) -> None:
    length = len(partial_sample.tokens)
    if length > limits.new_tokens or (partial_sample.finish is None and length == limits.new_tokens):
        refuse(f"a partial rollout of {length} tokens; model.max_new_tokens is {limits.new_tokens}")
    if partial_sample.finish == "abort" or (partial_sample.finish == "length" and length != limits.new_tokens):
        refuse(f"a partial rollout of {length} tokens cannot have ended by {partial_sample.finish}")
    if length and partial_sample.tokens.max() >= limits.vocabulary:
        refuse(f"a token id is outside the model's vocabulary of {limits.vocabulary}")
    if length and not LOGPROB_MIN <= partial_sample.logprobs.min() <= partial_sample.logprobs.max() <= LOGPROB_MAX:
        refuse("a log-probability is none that anything was drawn with")
    check_observed("a partial rollout", partial_sample.observed, limits)


def _check_header(header: dict[str, Any]) -> None:
    if not isinstance(header["task"], str) or not header["task"]:
        refuse("task is no name")
    count(header["lineage"], "lineage")
    samples = header["samples"]
    if not isinstance(samples, list) or not 0 < len(samples) <= SAMPLES_MAX:
        refuse("there are no samples, or too many")
    for words in samples:
        if not isinstance(words, list) or len(words) != 4:
            refuse("a partial rollout is not [length, finish, spans, observed]")
        count(words[0], "a partial rollout's length")


def _partial(tokens: Tokens, logprobs: Logprobs, finish: object, spans: object, observed: object) -> PartialSample:
    if finish is not None and (not isinstance(finish, str) or finish not in FINISHES):
        refuse(f"a partial rollout cannot finish by {finish!r}")
    if not np.isfinite(logprobs).all():
        refuse("a log-probability is not finite")
    end: Any = finish
    return PartialSample(ids(tokens), logprobs, _rising(spans, len(tokens)), observed_of(observed, logprobs), end)


def _rising(spans: object, length: int) -> tuple[Span, ...]:
    """As a sample's, but none before the first token; nobody goes back to older weights."""
    found = () if length == 0 and spans == [] else spans_of(spans, length)
    versions = [span.version for span in found]
    if bool(length) != bool(found) or versions != sorted(versions):
        refuse(f"a partial rollout of {length} tokens is of versions {versions}")
    return found
