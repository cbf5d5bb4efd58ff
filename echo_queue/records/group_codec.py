"""One group as bytes: a version byte, a small JSON header, then packed little-endian arrays.

    u8 version | u32 header length | header (JSON) | prompt i32[P] | per sample: tokens i32[T], logprobs f32[T]

- The prompt is held once.
- `decode` accepts exactly what `encode` makes, byte for byte: any other length, size, type, spelling, order of spans or
  non-finite number is a `CodecError`, since these bytes come from machines that are not trusted.
- The header's claims are checked against the bytes at hand before anything is built from them, so that decoding never
  takes more than 4 times the size cap.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, get_args

import numpy as np
import numpy.typing as npt
import orjson

from echo_queue.errors import EchoQueueError, Problem
from echo_queue.records import Finish, Group, Logprobs, Observed, PartialSample, Sample, Span, Tokens

FORMAT = 3
PREFIX = struct.Struct("<BI")
GROUP_MAX_BYTES = 64 << 20
HEADER_MAX_BYTES = 1 << 20
HEADER_SHARE = 16
"""A header may take at most 1/16 of the size cap: as Python values, JSON takes up to 45 times its bytes."""
SAMPLES_MAX = 4096
NUMBER_MAX = 1 << 53
INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")
NAMES = ("task", "set", "worker")
NUMBERS = ("epoch", "index", "attempt", "lineage", "prompt")
ORDER = ("task", "set", "epoch", "index", "attempt", "worker", "lineage", "prompt", "rewards", "samples")
FINISHES = get_args(Finish)


class CodecError(EchoQueueError):
    """The bytes are not a valid group; the message says which rule they break. `cause` is one word to count it by."""

    cause: str = "bytes"


def encode(group: Group) -> bytes:
    """Packs `group` into about 8 bytes per sampled token and 4 per prompt token. Raises `CodecError`."""
    header = orjson.dumps(
        {
            "task": group.task,
            "set": group.set,
            "epoch": group.epoch,
            "index": group.index,
            "attempt": group.attempt,
            "worker": group.worker,
            "lineage": group.lineage,
            "prompt": len(group.prompt),
            "rewards": list(group.rewards),
            "samples": [
                [
                    len(sample.tokens),
                    float(sample.reward),
                    sample.finish,
                    [list(span) for span in sample.spans],
                    [list(part) for part in sample.observed],
                    list(map(float, sample.parts)),
                ]
                for sample in group.samples
            ],
        }
    )
    names = names_of(list(group.rewards))
    for sample in group.samples:
        if not math.isfinite(sample.reward):
            refuse(f"the reward {sample.reward} is not finite")
        parts_of(list(map(float, sample.parts)), names)
    return b"".join([PREFIX.pack(FORMAT, len(header)), header, _packed(group.prompt, INT32), *arrays_of(group.samples)])


def decode(data: bytes, max_bytes: int = GROUP_MAX_BYTES) -> Group:
    """Unpacks a group whose arrays are read-only views of `data`. Raises `CodecError`."""
    header, start = header_of(data, FORMAT, ORDER, max_bytes)
    _check(header)
    prompt, pairs = arrays(data, start, header["prompt"], [length for length, *_ in header["samples"]])
    rewards = names_of(header["rewards"])
    samples = tuple(_sample(*pair, words, rewards) for pair, words in zip(pairs, header["samples"], strict=True))
    names = {name: header[name] for name in NAMES + NUMBERS if name != "prompt"}
    return Group(prompt=ids(prompt), samples=samples, rewards=rewards, **names)


def header_of(data: bytes, form: int, order: tuple[str, ...], max_bytes: int) -> tuple[dict[str, Any], int]:
    """Returns the header and the offset at which the arrays begin.

    `form` is the format's number that the bytes must have, `order` the names of the header in their order. Raises
    `CodecError`.
    """
    if len(data) > max_bytes:
        refuse(f"{len(data)} bytes are more than queue.group_max_bytes = {max_bytes}")
    if len(data) < PREFIX.size:
        refuse(f"{len(data)} bytes are too few")
    found, size = PREFIX.unpack_from(data)
    if found != form:
        refuse(f"format {found} is not {form}")
    if size > min(HEADER_MAX_BYTES, max_bytes // HEADER_SHARE, len(data) - PREFIX.size):
        refuse(f"a header of {size} bytes does not fit")
    start = PREFIX.size + size
    return _parsed(data[PREFIX.size : start], order), start


def arrays_of(samples: Iterable[Sample | PartialSample]) -> Iterator[bytes]:
    """Yields the bytes of each sample's tokens and log-probabilities. Raises `CodecError`."""
    for sample in samples:
        if len(sample.tokens) != len(sample.logprobs):
            refuse(f"a sample of {len(sample.tokens)} tokens has {len(sample.logprobs)} log-probabilities")
        observed_of([list(part) for part in sample.observed], sample.logprobs)
        yield _packed(sample.tokens, INT32)
        yield _packed(sample.logprobs, FLOAT32)


def _packed(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    """Returns the bytes of a one-dimensional array as `dtype`. Raises `CodecError`."""
    if values.ndim != 1:
        refuse(f"an array has {values.ndim} dimensions")
    if dtype is FLOAT32 and not np.isfinite(values).all():
        refuse("a log-probability is not finite")
    return values.astype(dtype, copy=False).tobytes()


def _parsed(text: bytes, order: tuple[str, ...]) -> dict[str, Any]:
    try:
        header = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        refuse(f"the header is not JSON: {error}")
    if not isinstance(header, dict) or tuple(header) != order:
        refuse(f"the header's names are not {', '.join(order)}")
    if orjson.dumps(header) != text:
        refuse("the header is not spelled as `encode` spells it")
    return header


def _check(header: dict[str, Any]) -> None:
    for name in NAMES:
        if not isinstance(header[name], str) or not header[name]:
            refuse(f"{name} is not a name")
    for name in NUMBERS:
        count(header[name], name)
    samples = header["samples"]
    if not isinstance(samples, list) or not 0 < len(samples) <= SAMPLES_MAX:
        refuse("there are no samples, or too many")
    for words in samples:
        if not isinstance(words, list) or len(words) != 6:
            refuse("a sample is not [length, reward, finish, spans, observed, parts]")
        count(words[0], "a sample's length")


def arrays(data: bytes, start: int, prompt: int, lengths: list[int]) -> tuple[Tokens, list[tuple[Tokens, Logprobs]]]:
    """Returns views of `data` from `start` on: the prompt's tokens, and tokens and log-probabilities of each sample.

    Raises `CodecError` unless `data` ends with the last of them.
    """
    expected = start + 4 * prompt + 8 * sum(lengths)
    if len(data) != expected:
        refuse(f"{len(data)} bytes where the header announces {expected}")
    at, pairs = start + 4 * prompt, []
    for length in lengths:
        pairs.append((np.frombuffer(data, INT32, length, at), np.frombuffer(data, FLOAT32, length, at + 4 * length)))
        at += 8 * length
    return np.frombuffer(data, INT32, prompt, start), pairs


def _sample(tokens: Tokens, logprobs: Logprobs, words: list[Any], rewards: tuple[str, ...]) -> Sample:
    _, reward, finish, spans, observed, parts = words
    if not isinstance(reward, float) or not math.isfinite(reward):
        refuse(f"the reward {reward!r} is not a finite number")
    if not isinstance(finish, str) or finish not in FINISHES:
        refuse(f"a sample cannot end by {finish!r}")
    if not np.isfinite(logprobs).all():
        refuse("a log-probability is not finite")
    end: Any = finish
    own, read = spans_of(spans, len(tokens)), observed_of(observed, logprobs)
    return Sample(ids(tokens), logprobs, own, reward, end, read, parts_of(parts, rewards))


def names_of(names: object) -> tuple[str, ...]:
    """Reads the names of reward functions, each of which stands there once. Raises `CodecError`."""
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        refuse("the rewards are not a list of names")
    if len(set(names)) != len(names):
        refuse("two rewards have one name")
    return tuple(names)


def parts_of(parts: object, rewards: tuple[str, ...]) -> tuple[float, ...]:
    """Reads what each reward function gave a sample. Raises `CodecError`."""
    if not isinstance(parts, list) or len(parts) != len(rewards):
        refuse("a sample has not one part for each reward")
    if not all(isinstance(part, float) and math.isfinite(part) for part in parts):
        refuse("a part of a reward is not a finite number")
    return tuple(parts)


def spans_of(spans: object, length: int) -> tuple[Span, ...]:
    """Reads spans, which rise strictly from 0 within the sample; an empty sample has one. Raises `CodecError`."""
    if not isinstance(spans, list) or not spans:
        refuse("a sample has no version spans")
    last = -1
    for span in spans:
        if not isinstance(span, list) or len(span) != 2:
            refuse("a span is not [start, version]")
        start = count(span[0], "a span's start")
        count(span[1], "a span's version")
        if (last < 0 and start != 0) or start <= last or start >= max(length, 1):
            refuse("the spans do not rise from 0 within their sample")
        last = start
    return tuple(Span(start, version) for start, version in spans)


def observed_of(ranges: object, logprobs: Logprobs) -> tuple[Observed, ...]:
    """Reads ranges, which rise within the sample with sampled tokens between them and hold log-probabilities of 0.

    Raises `CodecError`.
    """
    if not isinstance(ranges, list):
        refuse("the observed ranges are not a list")
    last = -1
    for part in ranges:
        if not isinstance(part, list) or len(part) != 2:
            refuse("an observed range is not [start, end]")
        start, end = count(part[0], "a range's start"), count(part[1], "a range's end")
        if not last < start < end <= len(logprobs):
            refuse("the observed ranges do not rise within their sample")
        if logprobs[start:end].any():
            refuse("an observed token has a log-probability other than 0")
        last = end
    return tuple(Observed(start, end) for start, end in ranges)


def ids(tokens: Tokens) -> Tokens:
    """Returns `tokens`. Raises `CodecError` for a negative one."""
    if tokens.size and tokens.min() < 0:
        refuse("a token id is negative")
    return tokens


def count(value: object, name: str) -> int:
    """Returns `value` if it is a whole number from 0 to 2**53 − 1. Raises `CodecError`."""
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        refuse(f"{name} is {value!r}, not a count")
    return value


def refuse(rule: str) -> NoReturn:
    raise CodecError(
        Problem("group or partial rollout", rule, "the worker that made it is broken or of another release")
    )
