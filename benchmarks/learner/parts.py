"""The parts of an update: where its seconds go, by torch's profiler.

The time of an operation or kernel is its own, without what it calls. `idle` is the time in which the device computed
nothing, as shares of the update: on a GPU, kernels of several streams can overlap, which makes it smaller than it is.
"""

from collections.abc import Callable, Iterable, Mapping
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


def shares(update: Callable[[], object], kind: str) -> dict[str, float]:
    """Returns each part's share of the seconds that one update takes; `kind`: the device's, "cpu" or "cuda"."""
    on_gpu = kind == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with profile(activities=activities, acc_events=True) as profiler:
        seconds = timed(update)
    found = seconds_of(profiler.key_averages(), kind)
    found[IDLE] = max(0.0, seconds - sum(found.values()))
    return {part: spent / seconds for part, spent in found.items()}


def seconds_of(events: Iterable[Any], kind: str) -> dict[str, float]:
    """Returns each part's seconds among a profiler's averages.

    A GPU's timeline has each range that a program names, such as an optimizer's step, beside its kernels: their time is
    counted, and not that of the range.
    """
    on_gpu, found = kind == "cuda", dict.fromkeys((*WORDS, REST), 0.0)
    for event in events:
        if event.device_type.name == ("CUDA" if on_gpu else "CPU") and not (on_gpu and event.is_user_annotation):
            microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            found[part_of(event.key)] += microseconds / 1e6
    return found


def part_of(name: str) -> str:
    """Returns the part to which an operation or kernel belongs."""
    lower = name.lower()
    return next((part for part, words in WORDS.items() if any(word in lower for word in words)), REST)
