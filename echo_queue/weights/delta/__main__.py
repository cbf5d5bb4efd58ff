"""`python -m echo_queue.weights.delta` compiles the codec for this machine ahead of time: some 25 seconds of one core.

Numba keeps what it compiles beside the code, so the processes of a run need not compile it, each for itself.
"""

import torch

from echo_queue.weights.delta import apply, encode
from echo_queue.weights.delta.codes import SIGNED

SHARES = (0.01, 0.1, 0.5)
"""Shares of changed elements; few, some and many are coded differently."""

draw = torch.Generator().manual_seed(0)
for width in SIGNED.values():
    values = torch.randint(0, 100, (1 << 18,), generator=draw)
    base = {"w": values.to(getattr(torch, width))}
    for share in SHARES:
        changed = torch.rand(len(values), generator=draw) < share
        new = {"w": (values + changed).to(getattr(torch, width))}
        for shard in (*encode({}, base), *encode(base, new)):
            apply(shard.data, base, base)
