"""A segment of the partial rollouts of one task as bytes, packed as a group is (`group_codec`).

    u8 format | u32 header length | header (JSON) | per sample: tokens i32[T], logprobs f32[T]

- `decode` accepts exactly what `encode` makes, byte for byte, and takes at most 4 times the size cap.
- A worker joins the segments (`segments.join`) and checks the partial rollout (`validation.check_partials`) before it
  continues it: the bytes come from a machine that is not trusted.
"""

from typing import Any

import numpy as np
import orjson

from echo_queue.records import Logprobs, PartialGroup, PartialSample, PartialSegment, Span, Tokens
from echo_queue.records.group_codec import (
    FINISHES,
    GROUP_MAX_BYTES,
    PREFIX,
    SAMPLES_MAX,
    arrays,
    arrays_of,
    count,
    header_of,
    ids,
    observed_of,
    refuse,
    spans_of,
)

FORMAT = 2
ORDER = ("task", "lineage", "begins", "samples")


def encode(segment: PartialSegment) -> bytes:
    """Packs `segment` into about 8 bytes per token. Raises `CodecError` for values that no partial rollout has."""
    gained = segment.gained
    samples = [
        [
            len(sample.tokens),
            sample.finish,
            [list(span) for span in sample.spans],
            [list(part) for part in sample.observed],
        ]
        for sample in gained.samples
    ]
    begins = list(segment.begins)
    header = orjson.dumps({"task": gained.task, "lineage": gained.lineage, "begins": begins, "samples": samples})
    return b"".join([PREFIX.pack(FORMAT, len(header)), header, *arrays_of(gained.samples)])


def decode(data: bytes, max_bytes: int = GROUP_MAX_BYTES) -> PartialSegment:
    """Unpacks a segment whose arrays are read-only views of `data`. Raises `CodecError`."""
    header, start = header_of(data, FORMAT, ORDER, max_bytes)
    _check_header(header)
    _, pairs = arrays(data, start, 0, [length for length, *_ in header["samples"]])
    samples = tuple(_partial(*pair, *words[1:]) for pair, words in zip(pairs, header["samples"], strict=True))
    return PartialSegment(tuple(header["begins"]), PartialGroup(header["task"], header["lineage"], samples))


def versions(partials: PartialGroup) -> tuple[int, int]:
    """Returns the oldest and the newest version that sampled a token; there must be at least one token."""
    numbers = [span.version for sample in partials.samples for span in sample.spans]
    return min(numbers), max(numbers)


def tokens(partials: PartialGroup) -> int:
    """Counts the tokens of all samples."""
    return sum(len(sample.tokens) for sample in partials.samples)


def _check_header(header: dict[str, Any]) -> None:
    if not isinstance(header["task"], str) or not header["task"]:
        refuse("task is not a name")
    count(header["lineage"], "lineage")
    samples = header["samples"]
    if not isinstance(samples, list) or not 0 < len(samples) <= SAMPLES_MAX:
        refuse("there are no samples, or too many")
    for words in samples:
        if not isinstance(words, list) or len(words) != 4:
            refuse("a partial rollout is not [length, finish, spans, observed]")
        count(words[0], "a partial rollout's length")
    begins = header["begins"]
    if not isinstance(begins, list) or len(begins) != len(samples):
        refuse(f"it does not say at which token each of {len(samples)} samples goes on")
    for begin in begins:
        count(begin, "a segment's begin")


def _partial(tokens: Tokens, logprobs: Logprobs, finish: object, spans: object, observed: object) -> PartialSample:
    if finish is not None and (not isinstance(finish, str) or finish not in FINISHES):
        refuse(f"a partial rollout cannot end by {finish!r}")
    if not np.isfinite(logprobs).all():
        refuse("a log-probability is not finite")
    end: Any = finish
    return PartialSample(ids(tokens), logprobs, _rising(spans, len(tokens)), observed_of(observed, logprobs), end)


def _rising(spans: object, length: int) -> tuple[Span, ...]:
    """Reads spans as a sample's, but there are none before the first token, and versions never fall."""
    found = () if length == 0 and spans == [] else spans_of(spans, length)
    versions = [span.version for span in found]
    if bool(length) != bool(found) or versions != sorted(versions):
        refuse(f"a partial rollout of {length} tokens has the versions {versions}")
    return found
