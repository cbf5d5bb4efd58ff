"""What a device does at most, measured: the rates by which a roofline judges an update."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.learner.timing import timed


@dataclass(frozen=True)
class Rates:
    """FLOP/s of bfloat16 products and of causal attention, bytes/s read and written on the device, s for a launch."""

    products: float
    attention: float
    memory: float
    launch_s: float


def rates(where: torch.device) -> Rates:
    """Measures them, in a second on a GPU."""
    large = where.type == "cuda"
    return Rates(
        products(where, torch.bfloat16, 8192 if large else 256),
        attention(where, 8192 if large else 256),
        memory(where, 1 << (31 if large else 22)),
        launch_s(where),
    )


def products(where: torch.device, dtype: torch.dtype, size: int) -> float:
    """Returns the FLOP/s of products of square matrices."""
    one, two = (torch.randn(size, size, device=where, dtype=dtype) for _ in range(2))
    return 2 * size**3 / of_many(lambda: one @ two, 10)


def attention(where: torch.device, length: int) -> float:
    """Returns the FLOP/s of one causal forward pass, in bfloat16."""
    heads, width = (32, 128) if where.type == "cuda" else (2, 16)
    q, k, v = (torch.randn(1, heads, length, width, device=where, dtype=torch.bfloat16) for _ in range(3))
    took_s = of_many(lambda: scaled_dot_product_attention(q, k, v, is_causal=True), 10)
    return 2 * heads * width * length**2 / took_s


def memory(where: torch.device, size: int) -> float:
    """Returns the bytes/s that a copy of `size` bytes reads and writes."""
    room = torch.randint(0, 100, (size,), dtype=torch.uint8, device=where)
    other = torch.empty_like(room)
    return 2 * size / of_many(lambda: other.copy_(room), 10)


def launch_s(where: torch.device) -> float:
    """Returns the seconds between launches of kernels that do next to nothing."""
    small = torch.zeros(1, device=where)
    return of_many(lambda: small.add_(1), 1_000)


def of_many(work: Callable[[], object], times: int) -> float:
    """Returns the seconds that one of `times` takes, after one that warms up."""
    work()
    return timed(lambda: [work() for _ in range(times)]) / times
