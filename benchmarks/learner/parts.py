"""The parts of an update: where its seconds go, by torch's profiler.

The time of an operation or kernel is its own, without what it calls. `idle` is the time in which the device computed
nothing, as shares of the update: on a GPU, kernels of several streams can overlap, which makes it smaller than it is.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.learner.timing import timed

WORDS: Mapping[str, tuple[str, ...]] = {
    "communication": ("nccl", "c10d", "gloo", "all_gather", "reduce_scatter", "allreduce"),
    "attention": ("flash", "attention", "attn", "fmha"),
    "optimizer": ("adam", "multi_tensor", "_foreach"),
    "matrix products": ("gemm", "matmul", "aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "cutlass", "nvjet"),
    "copies": ("memcpy", "memset", "copy_", "aten::to", "aten::cat"),
}
"""Words in the names of operations and kernels, in lower case; the first part that has one gets the time."""
REST, IDLE = "other kernels", "idle"


MOST_KERNELS = 15


@dataclass(frozen=True)
class Parts:
    """Where an update's seconds go, as shares of them. `kernels`: the kernels or operations that take longest."""

    shares: Mapping[str, float]
    kernels: Mapping[str, float]


def parts_of(update: Callable[[], object], kind: str) -> Parts:
    """Takes one update under the profiler; `kind`: the device's, "cpu" or "cuda".

    On a GPU its kernels alone are recorded: an update has some ten thousand of them, and far more operations.
    """
    on_gpu = kind == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU], acc_events=True) as profiler:
        seconds = timed(update)
    kernels = seconds_of(profiler.key_averages(), kind)
    found = dict.fromkeys((*WORDS, REST), 0.0)
    for name, spent in kernels.items():
        found[part_of(name)] += spent
    found[IDLE] = max(0.0, seconds - sum(found.values()))
    longest = sorted(kernels, key=lambda name: kernels[name], reverse=True)[:MOST_KERNELS]
    return Parts(
        {part: spent / seconds for part, spent in found.items()}, {name: kernels[name] / seconds for name in longest}
    )


def seconds_of(events: Iterable[Any], kind: str) -> dict[str, float]:
    """Returns the seconds of each kernel or operation among a profiler's averages.

    A GPU's timeline has each range that a program names, such as an optimizer's step, beside its kernels: their time is
    counted, and not that of the range.
    """
    on_gpu, found = kind == "cuda", dict[str, float]()
    for event in events:
        if event.device_type.name == ("CUDA" if on_gpu else "CPU") and not (on_gpu and event.is_user_annotation):
            microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            found[event.key] = found.get(event.key, 0.0) + microseconds / 1e6
    return found


def part_of(name: str) -> str:
    """Returns the part to which an operation or kernel belongs."""
    lower = name.lower()
    return next((part for part, words in WORDS.items() if any(word in lower for word in words)), REST)
