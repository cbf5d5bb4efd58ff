"""A group survives its bytes exactly; whatever is not a group is refused, never misread."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from echo_queue.records import Group, Observed, Sample, Span
from echo_queue.records.group_codec import FORMAT, PREFIX, CodecError, decode, encode

NAMES = st.text(min_size=1, max_size=20)
COUNTS = st.integers(0, 1 << 40)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def samples(draw: st.DrawFn, rewards: int) -> Sample:
    length = draw(st.integers(0, 12))
    starts = sorted(draw(st.sets(st.integers(1, length - 1), max_size=3))) if length > 1 else []
    borders = sorted(draw(st.sets(st.integers(0, length), max_size=6)))
    observed = tuple(Observed(*pair) for pair in zip(borders[::2], borders[1::2], strict=False))
    logprobs = draw(arrays.arrays(np.float32, length, elements=st.floats(-1024, 0, width=32)))
    for start, end in observed:
        logprobs[start:end] = 0
    return Sample(
        draw(arrays.arrays(np.int32, length, elements=st.integers(0, 2**31 - 1))),
        logprobs,
        tuple(Span(start, draw(COUNTS)) for start in [0, *starts]),
        draw(FINITE),
        draw(st.sampled_from(["stop", "length", "abort"])),
        observed,
        tuple(draw(FINITE) for _ in range(rewards)),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    prompt = draw(arrays.arrays(np.int32, st.integers(0, 20), elements=st.integers(0, 2**31 - 1)))
    numbers = [draw(COUNTS) for _ in range(4)]
    task, name, worker = draw(NAMES), draw(NAMES), draw(NAMES)
    rewards = tuple(draw(st.lists(NAMES, max_size=3, unique=True)))
    few = tuple(draw(st.lists(samples(len(rewards)), min_size=1, max_size=4)))
    return Group(task, name, numbers[0], numbers[1], numbers[2], worker, numbers[3], prompt, few, rewards)


def plain(group: Group) -> tuple[object, ...]:
    """A group as values that compare by content; floats by their bits."""
    return (
        *(getattr(group, name) for name in ("task", "set", "epoch", "index", "attempt", "worker", "lineage")),
        group.prompt.tobytes(),
        group.rewards,
        [
            (one.tokens.tobytes(), one.logprobs.tobytes(), one.spans, one.reward, one.finish, one.observed, one.parts)
            for one in group.samples
        ],
    )


SMALL = Group(
    "a/0/0", "a", 0, 0, 0, "w1", 0, np.arange(4, dtype=np.int32),
    tuple(
        Sample(
            np.arange(4, dtype=np.int32), np.array([-0.5, 0, 0, -0.5], np.float32), (Span(0, 1), Span(2, 2)), 1.0,
            "stop", (Observed(1, 3),), (2.5, -1.5),
        )
        for _ in range(2)
    ),
    ("right", "short"),
)  # fmt: skip


@given(groups())
@pytest.mark.slow
def test_a_group_survives_its_bytes_exactly(group: Group) -> None:
    assert plain(decode(encode(group))) == plain(group)


@given(st.binary(max_size=300))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(data)


@given(st.data())
def test_a_changed_byte_is_refused_or_changes_only_values(data: st.DataObject) -> None:
    raw = bytearray(encode(SMALL))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        group = decode(bytes(raw))
    except CodecError:
        return
    assert [len(one.tokens) for one in group.samples] == [len(one.logprobs) for one in group.samples]
    assert all(np.isfinite(one.logprobs).all() and np.isfinite(one.reward) for one in group.samples)


@given(st.integers(0, 400), st.binary(max_size=20))
def test_a_cut_or_lengthened_record_is_refused(kept: int, more: bytes) -> None:
    raw = encode(SMALL)
    altered = raw[:kept] + more
    if len(altered) != len(raw):
        with pytest.raises(CodecError):
            decode(altered)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"epoch":0', b'"epoch":-1'),
        (b'"epoch":0', b'"epoch":0.5'),
        (b'"epoch":0', b'"epoch":true'),
        (b'"epoch":0', b'"epoch":null'),
        (b'"epoch":0', b'"other":0'),
        (b'"task":"a/0/0"', b'"task":""'),
        (b'"task":"a/0/0"', b'"task":["a"]'),
        (b'"prompt":4', b'"prompt":5'),
        (b'"prompt":4', b'"prompt":99999999999999999999'),
        (b"[4,1.0", b"[3,1.0"),
        (b"[4,1.0", b"[-4,1.0"),
        (b"[4,1.0", b'[4,"1.0"'),
        (b"[4,1.0", b"[4,null"),
        (b'"stop"', b'"halt"'),
        (b"[[0,1],[2,2]]", b"[[1,1],[2,2]]"),
        (b"[[0,1],[2,2]]", b"[[0,1],[0,2]]"),
        (b"[[0,1],[2,2]]", b"[[0,1],[4,2]]"),
        (b"[[0,1],[2,2]]", b"[[0,1],[2]]"),
        (b"[[0,1],[2,2]]", b"[]"),
        (b",[[1,3]],", b","),
        (b"[[1,3]]", b"null"),
        (b"[[1,3]]", b"[[1]]"),
        (b"[[1,3]]", b"[[1,3.0]]"),
        (b"[[1,3]]", b"[[1,1]]"),
        (b"[[1,3]]", b"[[2,1]]"),
        (b"[[1,3]]", b"[[1,2],[2,3]]"),
        (b"[[1,3]]", b"[[2,3],[1,2]]"),
        (b"[[1,3]]", b"[[1,5]]"),
        (b"[[1,3]]", b"[[0,3]]"),
        (b"[[1,3]]", b"[[1,4]]"),
        (b",[2.5,-1.5]]", b"]"),
        (b"[2.5,-1.5]", b"null"),
        (b"[2.5,-1.5]", b"[2.5]"),
        (b"[2.5,-1.5]", b"[2.5,-1]"),
        (b"[2.5,-1.5]", b'[2.5,"1"]'),
        (b'["right","short"]', b'["right","right"]'),
        (b'["right","short"]', b'["right",""]'),
        (b'["right","short"]', b'["right",1]'),
        (b'["right","short"]', b'["right"]'),
        (b'["right","short"]', b"null"),
    ],
)
def test_a_header_that_lies_is_refused(old: bytes, new: bytes) -> None:
    raw = encode(SMALL)
    _, size = PREFIX.unpack_from(raw)
    header, rest = raw[PREFIX.size : PREFIX.size + size], raw[PREFIX.size + size :]
    assert old in header
    header = header.replace(old, new, 1)
    with pytest.raises(CodecError):
        decode(PREFIX.pack(FORMAT, len(header)) + header + rest)


def test_another_format_is_named() -> None:
    with pytest.raises(CodecError, match="format 1 is not 3"):
        decode(b"\x01" + encode(SMALL)[1:])


@pytest.mark.parametrize(
    "broken",
    [
        {"tokens": np.arange(2, dtype=np.int32)},
        {"tokens": np.zeros((4, 1), np.int32)},
        {"logprobs": np.array([np.nan, 0, 0, 0], np.float32)},
        {"observed": (Observed(0, 3),)},
        {"reward": float("nan")},
        {"parts": (1.0, float("inf"))},
        {"parts": (1.0,)},
    ],
)
def test_what_is_no_group_is_refused_before_it_is_sent(broken: dict[str, object]) -> None:
    with pytest.raises(CodecError):
        encode(replace(SMALL, samples=(replace(SMALL.samples[0], **broken),)))  # type: ignore[arg-type]


def test_a_negative_token_id_is_refused() -> None:
    with pytest.raises(CodecError, match="negative"):
        decode(encode(replace(SMALL, prompt=np.array([1, -1], np.int32))))


def test_8_samples_of_256_plus_1024_tokens_take_at_most_80_kb() -> None:
    sample = Sample(
        np.zeros(1024, np.int32), np.zeros(1024, np.float32), (Span(0, 1),), 0.5, "length", parts=(0.5, 0.0)
    )
    raw = encode(replace(SMALL, prompt=np.zeros(256, np.int32), samples=(sample,) * 8))
    assert len(raw) <= 68_000
