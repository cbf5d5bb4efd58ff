"""Packs one stream: its bytes as a zstd frame, or unchanged where a frame would not be shorter.

The compressor is tuned to code single bytes (Huffman) and to search for hardly any repeats: noise has none, and those
found by chance cost more than they save.
"""

import threading
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

PARAMETERS = zstandard.ZstdCompressionParameters(
    window_log=17,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
    strategy=zstandard.STRATEGY_FAST,
)
_own = threading.local()


class MalformedStream(Exception):
    """The bytes are not a stream of the expected length."""


@dataclass(frozen=True)
class Packed:
    """A packed stream. `length`: the number of bytes to which `data` expands."""

    data: bytes
    length: int


def pack(data: bytes | memoryview, header: bool = False) -> Packed:
    """Packs a stream. `header`: the data is text, in which it is worth searching for repeats."""
    frame = (_header_compressor if header else _compressor)().compress(data) if len(data) else b""
    if len(frame) < len(data):
        return Packed(frame, len(data))
    return Packed(bytes(data), len(data))


def expand(data: memoryview, length: int) -> bytes | memoryview:
    """Returns the `length` bytes that were packed. Raises `MalformedStream`; never allocates more than `length`."""
    if len(data) == length:
        return data
    try:
        if zstandard.frame_content_size(data) != length:
            raise MalformedStream(f"a stream has other than the {length} bytes that are announced")
        return _decompressor().decompress(data, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedStream(f"a stream cannot be expanded: {error}") from None


def _compressor() -> zstandard.ZstdCompressor:
    """Returns this thread's compressor: threads may not share one, and it is slow to make."""
    if not hasattr(_own, "compressor"):
        _own.compressor = zstandard.ZstdCompressor(compression_params=PARAMETERS)
    compressor: zstandard.ZstdCompressor = _own.compressor
    return compressor


def _header_compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_own, "header_compressor"):
        _own.header_compressor = zstandard.ZstdCompressor(level=9)
    compressor: zstandard.ZstdCompressor = _own.header_compressor
    return compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_own, "decompressor"):
        _own.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _own.decompressor
    return decompressor
