"""Shards that depart from docs/weights.md in one thing each, all other things and the digests being right.

They belong to a tensor `w` of type U8 with the codes 0, 1, 2, 3, 4. A reader that took one would make 1, 1, 2, 3, 4, or
leave the codes as they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
from blake3 import blake3

from echo_queue.weights.delta import rans
from echo_queue.weights.delta.format import LENGTHS, MAGIC

BASE, NEW = bytes([0, 1, 2, 3, 4]), bytes([1, 1, 2, 3, 4])
CHANGE = rans.write(np.array([0], np.uint32), np.array([1], np.uint64))
"""The first code of class 0 changes by 1."""
TABLES, WORDS = CHANGE.tables.tobytes(), (CHANGE.gaps.tobytes(), CHANGE.values.tobytes(), CHANGE.extra.tobytes())
Streams = Sequence[bytes]


def entry(kind: str, streams: Streams, new: bytes = NEW, bits: int = 0, start: int = 0) -> dict[str, Any]:
    return {
        "names": ["w"], "dtype": "U8", "shape": [5], "start": start, "count": len(new), "kind": kind,
        "digest": blake3(new).hexdigest(), "bits": bits, "streams": [[len(one), len(one)] for one in streams],
    }  # fmt: skip


def shard(header: object, streams: Streams = (), spell: Callable[[bytes], bytes] = lambda text: text) -> bytes:
    text = spell(orjson.dumps(header))
    return MAGIC + LENGTHS.pack(len(text), len(text)) + text + b"".join(streams)


def piece(kind: str, *streams: bytes, bits: int = 0, new: bytes = NEW, **other: object) -> bytes:
    """Returns a shard of one piece. `other`: keys of its header that are different."""
    return shard([entry(kind, streams, new, bits) | other], streams)


def rotated(codes: bytes) -> bytes:
    return bytes((code * 2 % 256) | code >> 7 for code in codes)


FULL = rotated(NEW)
SAME = entry("same", (), BASE)
GOOD = {
    "gaps": piece("gaps", b"\0", b"\x01", b"", bits=4),
    "full": piece("full", FULL),
    "classes": piece("classes", b"\0\1", TABLES, *WORDS),
}
"""The shards from which the others depart."""
DEPARTURES = {
    "a high half behind the last symbol": piece("gaps", b"\0", b"\xf1", b"", bits=4),
    "an escape that is none": piece("gaps", b"\0", b"\x0f", b"\x01", bits=4),
    "bits without symbols": piece("full", FULL, bits=4),
    "symbols without bits": piece("gaps", b"\0", b"\x01", b""),
    "a stream too many": piece("same", b"x", new=BASE),
    "a position beyond the end": piece("gaps", b"\5", b"\x01", b"", bits=4, new=BASE),
    "a number with a zero in front": piece("classes", b"\x80\0\1", TABLES, *WORDS),
    "a table with a zero behind": piece("classes", b"\0\1", bytes([1, 2, *TABLES[2:4], 0, *TABLES[4:]]), *WORDS),
    "a first state below 65,536": piece("classes", b"\0\1", TABLES, bytes([1, 0, 0, 0, 0, 0]), *WORDS[1:]),
    "a change to something else": piece("gaps", b"\0", b"\x03", b"", bits=4),
    "a key too many": piece("full", FULL, note=""),
    "a text for names": piece("full", FULL, names="w"),
    "a name twice": piece("full", FULL, names=["w", "w"]),
    "a digest in capitals": piece("full", FULL, digest=blake3(NEW).hexdigest().upper()),
    "an object for the header": shard({}),
    "another spelling": shard([entry("full", (FULL,))], (FULL,), spell=lambda text: text.replace(b",", b", ")),
    "a piece twice": shard([SAME, SAME]),
    "pieces that overlap": shard([entry("same", (), BASE[:3]), entry("same", (), BASE[2:], start=2)]),
    "a piece beyond the tensor": shard([entry("same", (), BASE, start=1)]),
    "no elements of a tensor that has some": shard([entry("same", (), b"")]),
}
