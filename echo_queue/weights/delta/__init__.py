"""Encodes deltas between two sets of tensors and applies them, bit for bit; knows nothing of stores or peers.

- `encode(base, new)` yields shards; each can be applied by itself, in any order, as soon as it has arrived.
- `apply(shard, base, out)` fills `out` or raises `BadDelta`; the result is checked against the digests of `new`.
- A delta over several versions is `encode(v - j, v)`; an anchor is `encode({}, v)`.
- Memory stays within a few pieces (4 MiB of a tensor each) and one shard, however large the model is.

The format is specified in docs/weights.md.
"""

from echo_queue.weights.delta.apply import apply
from echo_queue.weights.delta.encode import Settings, encode
from echo_queue.weights.delta.format import BadDelta, Piece, Shard, read_header

__all__ = ["BadDelta", "Piece", "Settings", "Shard", "apply", "encode", "read_header"]
