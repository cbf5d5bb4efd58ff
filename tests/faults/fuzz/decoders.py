"""Every decoder of bytes that another machine, or an untrusted process, has written, as the fuzzer calls it.

Each takes any bytes and must return, or raise the one kind of error that its decoder declares. Whatever else comes out
of it is a finding: another exception, a value that does not survive its own encoding, a hang, or too much memory.
Imports nothing of the fuzzer, so that CI replays the corpus without it.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import zstandard
from blake3 import blake3

from echo_queue.connections.storage.object_store import INDEX, MissingObject, digests
from echo_queue.errors import Problem, PromptError, ServiceError
from echo_queue.evaluation import stored
from echo_queue.evaluation.results import Answer, EvaluationResult, PromptAnswers
from echo_queue.queue import Heartbeat, replies
from echo_queue.queue.payload_fields import entry_fields
from echo_queue.queue.payloads import Payloads, mark_after, new_reference, partials_folder
from echo_queue.queue.types import StoredPartial
from echo_queue.records import (
    Group,
    Observed,
    PartialGroup,
    PartialSample,
    PromptRow,
    PromptShard,
    Sample,
    Span,
    Task,
    Version,
    group_codec,
    partial_codec,
    validation,
)
from echo_queue.records.group_codec import CodecError, decode, encode
from echo_queue.records.segments import cut, join
from echo_queue.reporting import metrics
from echo_queue.reporting.components import ComponentFigures
from echo_queue.submission import shards
from echo_queue.submission.shards import BadShard, ShardReader
from echo_queue.submission.sources import rows
from echo_queue.submission.sources.row_source import place_in
from echo_queue.weights import Announcement, Forged, Manifest, Part, Route, SignatureVerifier, Signer, TensorInfo
from echo_queue.weights.manifest import part_key, place_of, root_digest
from learner.recovery import manifest as checkpoint_manifest
from learner.recovery import rank_report
from learner.recovery.rank_report import RankReport
from learner.recovery.state_files import StateFile, StoredRows
from tests.faults.fuzz import delta_shards
from tests.synthetic import update
from workers.environments import child
from workers.weights.peers import http1
from workers.weights.peers.http1 import Garbled
from workers.weights.peers.peer_addresses import PeerAddresses
from workers.weights.peers.peer_addresses import Refused as PeerRefused
from workers.weights.peers.peer_auth import GREETING_END, PeerAuth, Refused

CAP_BYTES = 1 << 20
"""Size cap that the decoders run with; their memory must stay below 4 times as much."""
LIMITS = validation.GroupLimits(
    samples=2, vocabulary=100, prompt_tokens=64, new_tokens=64, turns=3, reward_min=-1.0, reward_max=1.0
)
NEWEST = Version(2, 9)
SIGNER = Signer(bytes(32))
VERIFIER = SignatureVerifier(SIGNER.public_key)


@dataclass(frozen=True)
class Decoder:
    """`seeds`: inputs that it accepts, to begin with. `words`: what such inputs are spelled with."""

    take: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes] = ()


def small_group() -> Group:
    tokens, logprobs = np.array([3, 4, 5], np.int32), np.array([-0.5, 0, -1], np.float32)
    samples = (
        Sample(tokens, logprobs, (Span(0, 7), Span(2, 9)), 1.0, "stop", (Observed(1, 2),), (1.5, -1.0)),
        Sample(tokens[:1], logprobs[:1], (Span(0, 9),), 0.0, "stop", parts=(0.0, 0.0)),
    )
    return Group("set/0/1", "set", 0, 1, 0, "w1", 2, np.array([1, 2], np.int32), samples, ("right", "short"))


# A worker's payload ---------------------------------------------------------------------------------------------------


def take_group(data: bytes) -> None:
    """The bytes, then what vetting says of them, as a learner asks."""
    with suppress(CodecError):
        group = decode(data, CAP_BYTES)
        assert encode(group) == data, "what was accepted is not what we would write"
        entry_fields(group)
        validation.check_versions(group, NEWEST)
        validation.check(group, LIMITS)
        for sample in group.samples:
            assert len(sample.tokens) == len(sample.logprobs) <= LIMITS.new_tokens
            assert max(sample.tokens) < LIMITS.vocabulary and np.isfinite(sample.logprobs).all()


def take_header(data: bytes) -> None:
    """The same behind a prefix that is right, with arrays of the lengths that the header announces."""
    body = 0
    with suppress(orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        header = orjson.loads(data)
        lengths = [header["prompt"], *(2 * sample[0] for sample in header["samples"])]
        body = min(4 * sum(lengths), 4096) if all(type(length) is int and length >= 0 for length in lengths) else 0
    take_group(group_codec.PREFIX.pack(group_codec.FORMAT, len(data)) + data + bytes(body))


def small_partials() -> PartialGroup:
    first, second = small_group().samples
    going_on = PartialSample(first.tokens, first.logprobs, first.spans, first.observed)
    return PartialGroup(
        "set/0/1", 2, (going_on, PartialSample(second.tokens, second.logprobs, second.spans, finish="stop"))
    )


def take_partials(data: bytes) -> None:
    """The bytes, then what a worker asks of them that is to go on with them."""
    with suppress(CodecError):
        segment = partial_codec.decode(data, CAP_BYTES)
        assert partial_codec.encode(segment) == data, "what was accepted is not what we would write"
        found = join([segment])
        validation.check_partials(found, LIMITS)
        for partial_sample in found.samples:
            assert len(partial_sample.tokens) == len(partial_sample.logprobs) <= LIMITS.new_tokens
            assert (
                max(partial_sample.tokens, default=0) < LIMITS.vocabulary and np.isfinite(partial_sample.logprobs).all()
            )
            assert all(span.version >= partial_codec.versions(found)[0] for span in partial_sample.spans)


def take_partials_header(data: bytes) -> None:
    """The same behind a prefix that is right, with arrays of the lengths that the header announces."""
    body = 0
    with suppress(orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        lengths = [partial_sample[0] for partial_sample in orjson.loads(data)["samples"]]
        body = min(8 * sum(lengths), 4096) if all(type(length) is int and length >= 0 for length in lengths) else 0
    take_partials(group_codec.PREFIX.pack(partial_codec.FORMAT, len(data)) + data + bytes(body))


BETWEEN = b"\0next\0"


def take_kept(data: bytes) -> None:
    """Reads a list of segments, as if a worker had written it by hand, with the mark that belongs to it."""
    segments, mark = replies.segments_of(data.split(BETWEEN)), ""
    for kind, payload in segments:
        mark = mark_after(mark, kind, payload)
    payloads = Payloads(HeldPayloads(data), 0, CAP_BYTES, limits=LIMITS)
    told = StoredPartial(*partial_codec.versions(small_partials()), 2, 4, mark, segments)
    found, bad = payloads.partials_of({"set/0/1": told})
    assert [*found, *bad] == ["set/0/1"]


FIELDS = struct.Struct("<IIIIBBBbfff")


def take_fields(data: bytes) -> None:
    """A group whose numbers are drawn from the input: everything spelled well, little of it true."""
    if len(data) < FIELDS.size:
        return
    prompt, first, oldest, newest, count, length, finish, token, logprob, low, reward = FIELDS.unpack_from(data)
    name = data[FIELDS.size :].decode("utf-8", "replace") or "w"
    count, length = count % 5, length % 80
    tokens = np.full(length, token, np.int32)
    spans = (Span(0, oldest), Span(max(1, first % 90), newest)) if finish & 4 else (Span(first % 2, newest),)
    end: Any = group_codec.FINISHES[finish % len(group_codec.FINISHES)]
    logprobs = np.full(length, logprob if finish & 8 else low, np.float32)
    observed = (Observed(first % 90, first % 90 + 1 + oldest % 8),) if finish & 16 else ()
    if finish & 32:
        logprobs[first % 90 : first % 90 + 1 + oldest % 8] = 0
    sample = Sample(tokens, logprobs, spans, reward, end, observed)
    made = Group("set/0/1", "set", oldest, 1, 0, name, newest, np.zeros(prompt % 100, np.int32), (sample,) * count)
    with suppress(CodecError):
        take_group(encode(made))


def take_entry(data: bytes) -> None:
    """A replay entry: NUL-separated words, as if a worker had written into the stream by hand."""
    words = data.split(b"\0")
    held = HeldPayloads(data)
    payloads = Payloads(held, 0, CAP_BYTES, validator=validation.GroupValidator(LIMITS, NEWEST))
    with suppress(CodecError):
        payloads.group(dict(zip(words[::2], words[1::2], strict=False)) | {b"group": encode(small_group())})
    with suppress(CodecError):
        payloads.group(dict(zip(words[::2], words[1::2], strict=False)))
    payloads.discard(words)
    assert all(key.startswith("replay/") for key in held.deleted)


@dataclass
class HeldPayloads:
    """A store that holds one object under every name."""

    data: bytes
    deleted: list[str] = field(default_factory=list)

    def put(self, key: str, data: bytes) -> None:
        raise AssertionError("a decoder writes nothing")

    def get(self, key: str, most_bytes: int | None = None) -> bytes:
        if key.endswith("0"):
            raise MissingObject()
        return self.data

    def delete(self, keys: list[str]) -> None:
        self.deleted += keys


def entry_words() -> list[bytes]:
    told = entry_fields(small_group())
    ref = new_reference("set/0/1", b"x")
    return [
        b"\0".join(f"{name}\0{value}".encode() for name, value in (told | more).items()) for more in ({}, {"ref": ref})
    ]


# What else a worker, a submitter or a learner elsewhere has written ---------------------------------------------------


def take_beat(data: bytes) -> None:
    """Name, then words in pairs, as Redis hands out a hash."""
    name, *words = data.split(b"\0")
    status = replies.worker_of(name, 5, dict(zip(words[::2], words[1::2], strict=False)), 0)
    assert status.heartbeat is None or isinstance(status.heartbeat, Heartbeat)


def take_dead(data: bytes) -> None:
    """A dead task's reason and worker come from the worker that failed it; the rest is Redis' own."""
    reason, _, worker = data.partition(b"\0")
    own = {b"id": b"set/0/1", b"attempt": b"3", b"died": b"5"}
    replies.dead_of(own | {b"reason": reason, b"worker": worker})


def take_shard(data: bytes) -> None:
    """A shard as it lies in the store, whose key its writer chose."""
    key = f"prompts/s/00000000-{blake3(data).hexdigest()[: shards.DIGEST_CHARACTERS]}.jsonl"
    reader = ShardReader(HeldPayloads(data))
    for index in range(3):
        with suppress(BadShard):
            row = reader.row(Task(f"s/0/{index}", "s", 0, index, PromptShard(key, 0, 3), 0, 0, 0, 0, 0, "tasks", "0-1"))
            assert rows.deserialise(rows.serialise(row)) == row


def take_row(data: bytes) -> None:
    """A line of a prompt file."""
    with suppress(rows.BadRow):
        row = rows.normalise(rows.read(data))
        assert rows.deserialise(rows.serialise(row)).prompt == row.prompt


def take_ticket(data: bytes) -> None:
    """A chunk's mark, whose ticket and reason are text of another machine."""
    text = data.decode("utf-8", "replace")
    with suppress(PromptError):
        place = place_in(text)
        assert min(place.start, place.row) >= 0 and place.rows > 0
    chunk = replies.waiting_chunk_of(7, b"waiting 1 2 digest " + text.encode())
    assert chunk is not None and chunk.ticket == text
    words = {"source": text, "chunks": "1", "prompts": "2"}
    submission_status = replies.submission_status_of(text, words, {b"7": b"failed 1 2 digest " + text.encode()})
    assert submission_status.failed[0].reason == text


def take_manifest(data: bytes) -> None:
    with suppress(ServiceError):
        manifest = Manifest.decode(data, "here")
        assert manifest.encode() == data, "what was accepted is not what we would write"
        _look_at(manifest.route)
        assert manifest.root == root_digest(manifest.tensors, manifest.aliases)


def take_route(data: bytes) -> None:
    with suppress(ServiceError):
        route = Route.decode(data, "here")
        assert route.encode() == data, "what was accepted is not what we would write"
        _look_at(route)


def take_part(data: bytes) -> None:
    with suppress(ServiceError):
        announced = Announcement.decode(data, "here")
        assert announced.encode() == data, "what was accepted is not what we would write"
        _look_at_part(announced.part, announced.version)


def _look_at(route: Route) -> None:
    for part in route.parts:
        _look_at_part(part, route.version)


def _look_at_part(part: Part, version: Version) -> None:
    """It lies nowhere but in its version's folder, and its chunks fill it."""
    place = place_of(part.key)
    assert place is not None and place.version == version and f"/{place.route}/" in part.key
    assert sum(part.length(index) for index in range(len(part.chunks))) == part.size
    assert all(part.length(index) > 0 for index in range(len(part.chunks)))


def take_envelope(data: bytes) -> None:
    with suppress(Forged):
        assert SIGNER.sign(VERIFIER.open(data, "here")) == data, "what was opened is not what was signed"


def take_checkpoint(data: bytes) -> None:
    with suppress(ValueError):
        manifest = checkpoint_manifest.decode(data)
        assert manifest.encode() == data, "what was accepted is not what we would write"
        for file in manifest.files:
            assert all(rows.begin >= 0 and rows.begin + rows.size <= file.size for rows in file.rows)


def take_rank_report(data: bytes) -> None:
    with suppress(ValueError):
        assert rank_report.decode(data).encode() == data, "what was accepted is not what a rank would write"


def take_index(data: bytes) -> None:
    with suppress(ServiceError):
        assert all(name and digest is not None for name, digest in digests(data, INDEX).items())


def take_metrics(data: bytes) -> None:
    update = metrics.update_of(data)
    if update is not None:
        metrics.summarise([update])


class OneObject:
    """A store that has these bytes, whatever is asked of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self, key: str, most_bytes: int) -> bytes:
        return self._data


def take_evaluation(data: bytes) -> None:
    """The lines of what is stored of a round, compressed as they are."""
    store: Any = OneObject(zstandard.ZstdCompressor().compress(data))
    with suppress(stored.SpoiledAnswers):
        _, answered = stored.read(store, "held-out", Version(1, 20))
        assert all(isinstance(one, PromptAnswers) for one in answered)


def take_answer(data: bytes) -> None:
    """Reads an answer of an environment's process to its worker."""
    with suppress(ValueError):  # orjson's errors are some
        answer = child.answer_of(orjson.loads(data))
        if isinstance(answer, child.Rewards):
            child.checked_rewards(answer.values, 2)
        if isinstance(answer, child.Reply):
            child.checked_reply(answer)


# Seeds ----------------------------------------------------------------------------------------------------------------


def _header() -> bytes:
    raw = encode(small_group())
    return raw[group_codec.PREFIX.size : group_codec.PREFIX.size + group_codec.PREFIX.unpack_from(raw)[1]]


def _partials_header() -> bytes:
    raw = partial_codec.encode(cut(small_partials()))
    return raw[group_codec.PREFIX.size : group_codec.PREFIX.size + group_codec.PREFIX.unpack_from(raw)[1]]


def kept_words() -> list[bytes]:
    ref = f"{partials_folder('set/0/1')}{'ab' * 20} {'cd' * 32}".encode()
    segment, last = (b"segment " + partial_codec.encode(cut(small_partials(), begins)) for begins in ((), (2, 2)))
    return [segment, segment + BETWEEN + last, b"ref " + ref, segment + BETWEEN + b"ref " + ref]


def _route(root: str) -> Route:
    version, base, chunks = Version(1, 2), Version(1, 1), ("ab" * 32, "cd" * 32)
    plain = Part(part_key(version, base, chunks), 40, 32, chunks)
    sealed = Part(part_key(version, base, chunks[:1]), 20, 32, chunks[:1], "0f" * 16)
    return Route("run", version, base, root, "01" * 32, (plain, sealed))


def _announcements() -> list[bytes]:
    route = _route("ab" * 32)
    anchor = Part(part_key(route.version, None, route.parts[0].chunks), 40, 32, route.parts[0].chunks)
    made = [Announcement("run", route.version, route.base, route.base_root, 1, part) for part in route.parts]
    return [one.encode() for one in (*made, Announcement("run", route.version, None, None, 0, anchor))]


def _manifest() -> bytes:
    tensors = (TensorInfo("e", "BF16", (0,), "ee" * 32), TensorInfo("w", "F32", (2, 4), "ef" * 32))
    aliases = {"w tied": "w"}
    root = root_digest(tensors, aliases)
    return Manifest("run", Version(1, 2), tensors, aliases, root, _route(root)).encode()


def _state_files() -> tuple[StateFile, ...]:
    rows = (StoredRows("w", "F32", (4, 2), 1, 3, 64), StoredRows("step", "F32", (), 0, 1, 88))
    return StateFile("ab" * 32, 92, rows), StateFile("cd" * 32, 8, ())


def _checkpoint() -> bytes:
    below, name = ("0001/00000001", "0001/00000002")
    trained, sets = ("set/0/1",), {"set": "ab"}
    return checkpoint_manifest.CheckpointManifest(1, 2, below, 2.0, trained, sets, name, _state_files()).encode()


def _evaluations() -> list[bytes]:
    tokens = np.array([3, 4], np.int32)
    whole = PromptAnswers(0, (Answer(1.0, 2, "stop", tokens), Answer(0.0, 2, "length", tokens)), prompt=tokens)
    result = EvaluationResult("held-out", Version(1, 20), 3, 20, 2, 2, failed=1, mean=0.5, pass_at={"1": 0.5})
    kept: list[bytes] = []
    store: Any = SimpleNamespace(put=lambda _, data: kept.append(data))
    for answered in (
        (whole, PromptAnswers(1, reason="the scorer raised")),
        (PromptAnswers(0, (Answer(1.0, 2, "stop"),)),),
    ):
        stored.write(store, result, answered)
    return [zstandard.ZstdDecompressor().decompress(data) for data in kept]


def _rank_reports() -> list[bytes]:
    reports = (
        RankReport(_state_files()),
        RankReport(damage="a file does not match its digest"),
        RankReport(failure=Problem("store.url", "is full", "free some space")),
    )
    return [report.encode() for report in reports]


def _metrics() -> list[bytes]:
    figures = ComponentFigures(12, 192, 1_920, 0.5, 10.0, 0.25, 2, {"right": 0.5})
    made = [update(1), update(2, trained_ids=["set/0/1"], components={"sums": figures}, rewards={"right": 0.5})]
    return [metrics.line_of(one) for one in made]


def _beat() -> bytes:
    words = replies.heartbeat_words(Heartbeat("transformers", Version(1, 2), "generating", 5.0, 0.1, 3))
    return b"\0".join([b"w1", *(str(word).encode() for word in words)])


def _rows() -> list[bytes]:
    chat: list[dict[str, str]] = [{"role": "user", "content": "yes?"}]
    made = [PromptRow("one", {"answer": 1}), PromptRow(chat, {}), PromptRow("three", {"a": [None, 1.5, {"b": "c"}]})]
    return [rows.serialise(row) for row in made]


def _lines() -> list[bytes]:
    return [b'{"prompt":"one","answer":1}', b'{"prompt":[{"role":"user","content":"yes?"}]}', b'{"prompt":" "}']


HEADER_WORDS = (
    *(f'"{name}":'.encode() for name in group_codec.ORDER),
    b'"stop"',
    b'"length"',
    b'"abort"',
    b"[[0,7],[2,9]]",
    b"[[1,2]]",
)
PARTIALS_WORDS = (b'"samples":[[3,null,[[0,7],[2,9]],[[2,3]]]', b'"lineage":2', b"null", b'"stop"', b"[[0,7]]", b"[]")
DELTA_WORDS = (b"EQD2", b'"names":', b'"start":', b'"count":27', b'"kind":"classes"', b'"streams":[[3,3],', b'"I16"')
JSON_WORDS = (b"null", b"true", b"-1", b"1e999", b"9007199254740993", b'"\\ud800"', b"[[[[", b'{"a":', b"1.0")

# What peers say to each other -----------------------------------------------------------------------------------------

TOKENS = PeerAuth(b"secret", lambda: 1_700_000_000.0)
PATH = http1.path_of("weights/0001/00000007/full/" + "ab" * 16 + ".part", 3)
MINTED = TOKENS.mint("w2", "w1", PATH)
GREETED = TOKENS.greeting("w1").removesuffix(GREETING_END)
ADDRESSES = PeerAddresses((), "10.0.0.1")


def take_request(data: bytes) -> None:
    """A request's head, and the token in it: only the one that was minted for this path opens it."""
    with suppress(Garbled):
        request = http1.parse_request(data)
        again = http1.request_head(request.method, http1.path_of(request.key, request.start), "h", "t")
        read = http1.parse_request(again[:-4])
        assert (read.method, read.key, read.start) == (request.method, request.key, request.start)
        with suppress(Refused):
            assert TOKENS.check(request.token, "w1", request.path) == "w2"
            assert (request.token, request.path) == (MINTED, PATH)


def take_greeting(data: bytes) -> None:
    """A server's first words, behind a right beginning as well: only what its peer made is taken."""
    for greeting in (data, GREETED[: -len(data)] + data):
        with suppress(Refused):
            TOKENS.check_greeting(greeting, "w1")
            assert greeting == GREETED


def take_address(data: bytes) -> None:
    """A host that a worker has named as its own: what is taken is an address, and none that no peer has."""
    with suppress(PeerRefused):
        host = data.decode("utf-8", "replace")
        ADDRESSES.check(host)
        assert not ip_address(host).is_link_local and not ip_address(host).is_loopback


def take_reply(data: bytes) -> None:
    with suppress(Garbled):
        reply = http1.parse_answer(data)
        if reply.status in http1.REASONS:
            fields = {"x_landed": reply.landed, "retry_after": int(reply.retry_s)}
            assert http1.parse_answer(http1.answer_head(reply.status, reply.length, **fields)[:-4]) == reply


def _request(method: str, start: int) -> bytes:
    return http1.request_head(method, PATH.replace("=3", f"={start}"), "10.0.0.1:80", MINTED)[:-4]


DECODERS: dict[str, Decoder] = {
    "group": Decoder(take_group, lambda: [encode(small_group())], HEADER_WORDS),
    "header": Decoder(take_header, lambda: [_header()], HEADER_WORDS + JSON_WORDS),
    "fields": Decoder(take_fields, lambda: [FIELDS.pack(2, 1, 7, 9, 2, 3, 5, 4, -0.5, -1.0, 1.0) + b"w1"]),
    "partials": Decoder(take_partials, lambda: [partial_codec.encode(cut(small_partials()))], PARTIALS_WORDS),
    "partials_header": Decoder(take_partials_header, lambda: [_partials_header()], PARTIALS_WORDS + JSON_WORDS),
    "kept": Decoder(take_kept, kept_words, (b"segment ", b"ref ", BETWEEN, b"partials/")),
    "entry": Decoder(take_entry, entry_words, (b"group\0", b"ref\0", b"replay/", b"worker\0", b"id\0", b"tokens\0")),
    "heartbeat": Decoder(
        take_beat, lambda: [_beat(), b"w1"], (b"version\0", b"tokens_per_s\0", b"1.2", b"nan", b"groups\0")
    ),
    "dead": Decoder(take_dead, lambda: [b"the lease ran out\0w1"]),
    "shard": Decoder(take_shard, lambda: [b"\n".join(_rows()) + b"\n"], (b'{"prompt":', b'"columns":{}}', *JSON_WORDS)),
    "row": Decoder(take_row, _lines, (b'{"prompt":', b'"role":', b'"content":', *JSON_WORDS)),
    "ticket": Decoder(
        take_ticket, lambda: [b'{"file":"p","start":5,"row":1,"rows":7}', b"{}"], (b'"start":', b'"rows":', *JSON_WORDS)
    ),
    "manifest": Decoder(
        take_manifest, lambda: [_manifest()], (b'"chunks":[', b'"tensors":[', b'"base":null', b'"salt":', *JSON_WORDS)
    ),
    "route": Decoder(
        take_route, lambda: [_route("ab" * 32).encode()], (b'"chunks":[', b'"base":null', b'"salt":', *JSON_WORDS)
    ),
    "part": Decoder(take_part, _announcements, (b'"chunks":[', b'"base":null', b'"place":', b'"salt":', *JSON_WORDS)),
    "envelope": Decoder(
        take_envelope, lambda: [SIGNER.sign(b"{}")], (b'{"body":', b',"key":"', b'","signature":"', b'"}')
    ),
    "request": Decoder(
        take_request,
        lambda: [_request("GET", 3), _request("HEAD", 0)],
        (b"GET ", b"HEAD ", b"/parts/", b"?from=", b" HTTP/1.1", b"\r\n", b"Authorization: ", b"EQ1 ", b"%2e", b"%00"),
    ),
    "greeting": Decoder(take_greeting, lambda: [GREETED], (b"EQ1 ", b" 17000000", b"0" * 64)),
    "address": Decoder(
        take_address,
        lambda: [b"10.0.0.2", b"169.254.169.254", b"::ffff:127.0.0.1", b"fd00::7"],
        (b"169.254.", b"::", b"ffff:", b"%eth0", b"127.", b"0x7f", b"."),
    ),
    "reply": Decoder(
        take_reply,
        lambda: [http1.answer_head(200, 262144, x_landed=9)[:-4], http1.answer_head(503, retry_after=1)[:-4]],
        (b"HTTP/1.1 200 OK", b"\r\n", b"Content-Length: ", b"X-Landed: ", b"Retry-After: ", b"Transfer-Encoding: "),
    ),
    "checkpoint": Decoder(take_checkpoint, lambda: [_checkpoint()], (b'"parent":null', b'"trained":[', *JSON_WORDS)),
    "rank_report": Decoder(
        take_rank_report, _rank_reports, (b'"damage":null', b'"failure":null', b'"where":"', *JSON_WORDS)
    ),
    "index": Decoder(
        take_index, lambda: [b'{"a/b":{"blake3":"ab","size":3}}'], (b'"blake3":', b'"size":', b'"../x":', *JSON_WORDS)
    ),
    "metrics": Decoder(take_metrics, _metrics, (b'"lags":{"0":1}', b'"trained_ids":[', *JSON_WORDS)),
    "evaluation": Decoder(
        take_evaluation, _evaluations, (b'"answers":[', b'"tokens":[', b'"prompt":null', *JSON_WORDS)
    ),
    "answer": Decoder(
        take_answer,
        lambda: [
            b'["Rewards",{"values":[1.0,0.5],"parts":{"a":[1.0,0.5]}}]',
            b'["Reply",{"observation":"x","reward":null}]',
            b'["Reply",{"observation":null,"reward":0.5}]',
            b'["Ready",{}]',
            b'["Within",{"names":["a"]}]',
            b'["Spent",{"calls":1,"tokens":2}]',
            b'["Failed",{"traceback":"x","frames":[{"file":"x","line":1,"function":"f"}]}]',
        ],
        (b'"Unfit",{"problems":[', b'{"where":"a","what":"b","fix":"c"}', *JSON_WORDS),
    ),
    "delta": Decoder(delta_shards.take, delta_shards.shards, DELTA_WORDS),
    "delta_header": Decoder(delta_shards.take_header, delta_shards.headers, DELTA_WORDS + JSON_WORDS),
    "delta_streams": Decoder(delta_shards.take_streams, delta_shards.streams),
}
