"""Decoders of foreign bytes: the corpus that fuzzing found, some new inputs, and the largest that may come."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_queue.records import group_codec
from echo_queue.records.group_codec import CodecError, decode, encode
from echo_queue.records.partial_codec import decode as decode_partials
from echo_queue.records.partial_codec import encode as encode_partials
from echo_queue.records.segments import cut
from echo_queue.reporting.metrics import update_of
from tests.faults.fuzz import fuzzer
from tests.faults.fuzz.decoders import CAP_BYTES, DECODERS, HEADER_WORDS, JSON_WORDS, small_group, small_partials
from tests.tiers import whole

ROOM = 4
FUZZED_S, DRAWN_S = 60, 5
"""Seconds of fuzzing one target in `make proof`, and of one that CI draws."""
NAMES = sorted(DECODERS)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith("delta") else []) for name in NAMES]
)
def test_every_input_of_the_corpus_is_taken_or_refused(name: str) -> None:
    inputs = [path for target, path in fuzzer.replay() if target == name]
    assert inputs
    for path in inputs:
        DECODERS[name].take(path.read_bytes())


def test_what_fuzzing_of_metrics_begins_with_are_updates() -> None:
    assert None not in [update_of(seed) for seed in DECODERS["metrics"].seeds()]


def test_the_corpus_is_small_and_of_known_targets() -> None:
    paths = list(fuzzer.replay())
    assert {target for target, _ in paths} == set(DECODERS)
    assert sum(path.stat().st_size for _, path in paths) < 1_000_000


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pieces_of_good_inputs_put_together_anyhow_are_taken_or_refused(name: str, data: st.DataObject) -> None:
    decoder = DECODERS[name]
    pieces = [*decoder.seeds(), *decoder.words, *JSON_WORDS, b"\0", b"\n", b""]
    few = data.draw(st.lists(st.sampled_from(pieces) | st.binary(max_size=8), max_size=6))
    decoder.take(b"".join(few))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(group_codec.ORDER), value=JSON)
def test_any_json_in_any_place_of_a_header_is_taken_or_refused(name: str, value: object) -> None:
    header = orjson.loads(DECODERS["header"].seeds()[0])
    DECODERS["header"].take(orjson.dumps(header | {name: value}))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 5), value=JSON)
def test_any_json_in_any_place_of_a_sample_is_taken_or_refused(place: int, value: object) -> None:
    header = orjson.loads(DECODERS["header"].seeds()[0])
    header["samples"][0][place] = value
    DECODERS["header"].take(orjson.dumps(header))


# Memory: what is announced costs nothing, what is there at most 4 times the cap ---------------------------------------


def behind_a_prefix(header: bytes, body: int = 0) -> bytes:
    return group_codec.PREFIX.pack(group_codec.FORMAT, len(header)) + header + bytes(body)


def filled(piece: bytes, size: int, begin: bytes = b"[", end: bytes = b"]") -> bytes:
    """JSON of `size` bytes at most, in which `piece` is repeated."""
    count = (size - len(begin) - len(end)) // (len(piece) + 1)
    return begin + b",".join([piece] * count) + end


HEADER_ROOM = CAP_BYTES // group_codec.HEADER_SHARE
PIECES = (b"[]", b"{}", b"[0]", b'{"":0}', b'""', b"0.5", b"18446744073709551615", b'"\\u0000"', b"[[[[]]]]", b"null")


def announcing(**changes: object) -> bytes:
    header = orjson.loads(DECODERS["header"].seeds()[0])
    return behind_a_prefix(orjson.dumps(header | changes))


def huge_header() -> bytes:
    """A prefix that promises a header of 4 GiB."""
    prefix = group_codec.PREFIX
    return prefix.pack(group_codec.FORMAT, 0xFFFFFFFF) + bytes(CAP_BYTES - prefix.size)


def largest() -> bytes:
    """A good group as large as the cap allows."""
    group = small_group()
    count = (CAP_BYTES - len(encode(group)) - 64) // 8
    long = replace(group.samples[0], tokens=np.zeros(count, np.int32), logprobs=np.zeros(count, np.float32))
    return encode(replace(group, samples=(long, group.samples[1])))


def largest_partials() -> bytes:
    partials = small_partials()
    count = (CAP_BYTES - len(encode_partials(cut(partials))) - 64) // 8
    long = replace(partials.samples[1], tokens=np.zeros(count, np.int32), logprobs=np.zeros(count, np.float32))
    return encode_partials(cut(replace(partials, samples=(partials.samples[0], long))))


GREEDY: list[Callable[[], tuple[str, bytes]]] = [
    *[lambda piece=piece: ("group", behind_a_prefix(filled(piece, HEADER_ROOM))) for piece in PIECES],  # type: ignore[misc]
    *[
        lambda piece=piece: ("group", behind_a_prefix(filled(piece, HEADER_ROOM, b'{"samples":[', b"]}")))  # type: ignore[misc]
        for piece in PIECES
    ],
    lambda: ("group", announcing(prompt=(1 << 53) - 1)),
    lambda: ("group", announcing(samples=[[(1 << 53) - 1, 1.0, "stop", [[0, 7]], []]] * 4096)),
    lambda: ("group", announcing(samples=[[0, 1.0, "stop", [[0, 7]], []]] * 4096)),
    lambda: ("group", announcing(samples=[[3, 1.0, "stop", [[at, 7] for at in range(8000)], []]])),
    lambda: ("group", announcing(samples=[[3, 1.0, "stop", [[0, 7]], [[2 * at, 2 * at + 1] for at in range(4000)]]])),
    lambda: ("group", announcing(worker="w" * (HEADER_ROOM - 300))),
    lambda: ("group", huge_header()),
    lambda: ("group", bytes(64 * CAP_BYTES)),
    lambda: ("group", largest()),
    *[
        lambda piece=piece: ("partials", behind_a_prefix(filled(piece, HEADER_ROOM, b'{"samples":[', b"]}")))  # type: ignore[misc]
        for piece in PIECES
    ],
    lambda: ("partials", largest_partials()),
    lambda: ("kept", b"partial rollout\0" + largest_partials()),
    lambda: ("answer", b'["Rewards",{"values":' + filled(b"1.0", CAP_BYTES // 8) + b"}]"),
    lambda: ("heartbeat", b"\0" * (CAP_BYTES // 64)),
]


@pytest.mark.parametrize("number", range(len(GREEDY)))
def test_no_input_takes_more_than_4_times_the_cap(number: int) -> None:
    name, data = GREEDY[number]()
    DECODERS[name].take(DECODERS[name].seeds()[0])
    tracemalloc.start()
    try:
        DECODERS[name].take(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= ROOM * CAP_BYTES, f"{peak} bytes"


def test_the_largest_group_is_a_good_one() -> None:
    assert CAP_BYTES - 128 < len(largest()) <= CAP_BYTES
    assert len(decode(largest(), CAP_BYTES).samples[0].tokens) > 100_000
    assert CAP_BYTES - 128 < len(largest_partials()) <= CAP_BYTES
    assert len(decode_partials(largest_partials(), CAP_BYTES).gained.samples[1].tokens) > 100_000
    with pytest.raises(CodecError, match=r"more than queue.group_max_bytes"):
        decode(largest() + bytes(128), CAP_BYTES)


# The fuzzer itself ----------------------------------------------------------------------------------------------------


@pytest.mark.proof(kind="fuzzing", share=2 / len(NAMES))
@pytest.mark.parametrize("name", NAMES)
def test_new_inputs_find_nothing(name: str) -> None:
    seconds = FUZZED_S if whole() else DRAWN_S
    command = [sys.executable, "-m", "tests.faults.fuzz.fuzzer", "--quiet", "--seconds", str(seconds), "--target", name]
    done = subprocess.run(command, cwd=fuzzer.ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" inputs in ") == 1


@pytest.mark.slow
def test_a_finding_is_an_error_and_its_input_is_kept(tmp_path: Path) -> None:
    """The fuzzer would notice: a decoder that lets a wrong exception out is found at once."""
    program = (
        "import pathlib, sys\n"
        "from tests.faults.fuzz import decoders, fuzzer\n"
        "fuzzer.WORK, fuzzer.CORPUS = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1]) / 'corpus'\n"
        "def spoiled(data):\n"
        "    if data[:2] == b'{}': raise KeyError('not declared')\n"
        "decoders.DECODERS['row'] = decoders.Decoder(spoiled, lambda: [b'{1'])\n"
        "fuzzer.fuzz_one('row', '-max_total_time=60', f'-artifact_prefix={sys.argv[1]}/')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=fuzzer.ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0 and "KeyError: 'not declared'" in done.stdout + done.stderr
    assert [path.read_bytes()[:2] for path in tmp_path.glob("crash-*")] == [b"{}"]


def test_the_count_of_fuzzed_inputs_adds_up() -> None:
    results = json.loads(fuzzer.RESULTS.read_text())
    assert set(results["targets"]) == set(DECODERS)
    assert results["inputs"] == sum(target["inputs"] for target in results["targets"].values())


def test_the_words_of_a_header_are_those_that_are_written() -> None:
    header = DECODERS["header"].seeds()[0]
    assert all(word in header for word in HEADER_WORDS if word.endswith(b":"))
