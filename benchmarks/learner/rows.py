"""The figures of one way of training one mix: how they are measured, shown and judged."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.learner.parts import Parts, parts_of
from benchmarks.learner.rates import Rates
from benchmarks.learner.roofline import Roofline, roofline
from benchmarks.learner.timing import timed
from benchmarks.learner.trainers import OURS, Ours, Trainer, ways
from benchmarks.learner.work import Mix, Shape
from benchmarks.rows import Rows
from echo_queue.capacity.estimate.learner_memory import learner_memory
from echo_queue.config import Config
from echo_queue.models import shape_of
from learner.ranks.team import Team

if TYPE_CHECKING:
    from benchmarks.learner.stages import Stages

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""FLOP/s in dense bfloat16, by a word of the device's name (the makers' data sheets)."""
LEAST_MFU = {
    ("8B", "H200", "full"): 0.40,
    ("8B", "H200", "selective"): 0.48,
    ("4B", "H100", "full"): 0.33,
    ("4B", "H100", "selective"): 0.33,
}
"""The least share of the peak at the best mix, by shape, a word of the device's name, and activation checkpointing:
what their rooflines come to on one card whose elementwise work is fused. All else has its own roofline alone."""
MEMORY_ERROR = 0.1
LONGEST_S = {"snapshot_stall_s": 0.05, "publish_s": 4.0, "checkpoint_stall_s": 1.0, "restore_s": 60.0}
"""The longest seconds of each stage that are promised of a model of 8B on one H200."""
GB = 1e9
NO_MEMORY = ": out of memory"
LATER: dict[str, Any] = {"parts": None, "roofline": None, "stages": None}
"""What is known of a row after its figures, and risked for itself."""


@dataclass(frozen=True)
class Row:
    """One way of training one mix; None where it cannot be known on this device, or was not measured.

    Seconds and bytes are those of rank 0; `drawn_per_s` and `mfu` are those of all ranks. `reserved_gb` and `retries`:
    what the allocator holds at most, and how often it gave back what it had kept because a piece did not fit.
    """

    shape: str
    mix: str
    micro_tokens: int
    ranks: int
    way: str = ""
    seconds: float | None = None
    drawn_per_s: float | None = None
    mfu: float | None = None
    peak_gb: float | None = None
    reserved_gb: float | None = None
    retries: int | None = None
    estimated_gb: float | None = None
    parts: Parts | None = None
    roofline: Roofline | None = None
    stages: "Stages | None" = None

    def continues(self, other: "Row") -> bool:
        """Returns whether it is the same row as another, of which less was known."""
        return replace(self, **LATER) == replace(other, **LATER)


@dataclass(frozen=True)
class Extent:
    """The extent to which a mix is measured. `ways`: their names, None for all; `stages`: publication, checkpoint."""

    repeats: int
    rates: Rates | None = None
    """The device's own, if a roofline is wanted."""
    ways: Sequence[str] | None = None
    stages: bool = True


def measured(
    row: Row, shape: Shape, mix: Mix, config: Config, rows: Rows, *, where: torch.device, team: Team, extent: Extent
) -> Iterator[Row]:
    """Yields a row for each way of training `mix`, and for ours again with its parts, its roofline, and each stage.

    What is yielded is known, whatever becomes of the rest. A way that needs too much memory says so, on one rank.
    An error of one of several ranks ends the benchmark: the others wait for that rank.
    """
    groups = mix.batch(shape.sizes["vocab_size"])
    for way, make in ways(shape, config.learner, where, groups, team=team, named=extent.ways).items():
        here, told = replace(row, way=way), f"{row.shape}, {row.mix}, {way}"

        def risked(what: str, told: str = told) -> AbstractContextManager[None]:
            return nullcontext() if team.size > 1 else rows.row(f"{told}{what}")

        with risked(""):
            trainer = None  # that of the way before is gone before this one is made
            try:
                trainer = make()
                here = figures(here, trainer, mix, config, where=where, team=team, repeats=extent.repeats)
                yield here
            except torch.cuda.OutOfMemoryError:
                if team.size > 1:
                    raise
                yield replace(here, way=f"{way}{NO_MEMORY}")
        if here.seconds and isinstance(trainer, Ours) and way == OURS:
            with risked(": parts"):
                here = replace(here, parts=parts_of(partial(trainer.update, 1), where.type))
                yield here
            if extent.rates:
                with risked(": roofline"):
                    attention = mix.attention(trainer.model)
                    here = replace(here, roofline=roofline(partial(trainer.update, 1), attention, extent.rates))
                    yield here
            if extent.stages and team.size == 1:
                with risked(": stages"):
                    from benchmarks.learner.stages import stages_of  # what else it needs, rows without stages do not

                    yield from (replace(here, stages=stages) for stages in stages_of(trainer))
        trainer = None
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()


def figures(
    row: Row, trainer: Trainer, mix: Mix, config: Config, *, where: torch.device, team: Team, repeats: int
) -> Row:
    """Takes one step that warms up, then `repeats` that count."""
    cuda = where.type == "cuda"
    flop, rate = mix.flop(trainer.model), peak_rate(where)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    trainer.update(1)
    seconds = median(timed(lambda: trainer.update(1)) for _ in range(repeats))
    row = replace(
        row,
        seconds=seconds,
        drawn_per_s=mix.drawn / seconds,
        mfu=flop / seconds / rate / team.size if rate else None,
        peak_gb=torch.cuda.max_memory_allocated() / GB if cuda else None,
        reserved_gb=torch.cuda.max_memory_reserved() / GB if cuda else None,
        retries=torch.cuda.memory_stats()["num_alloc_retries"] if cuda else None,
    )
    if not isinstance(trainer, Ours):
        return row
    return replace(row, estimated_gb=estimated_gb(trainer, config, team.size, where))


def estimated_gb(trainer: Ours, config: Config, ranks: int, where: torch.device) -> float:
    """Returns the peak of an update by `echo-queue estimate`: no version is being published or saved beside it."""
    shape = shape_of(trainer.model.config.to_dict(), "the benchmark's model")
    memory = learner_memory(config, shape, ranks, "cuda" if where.type == "cuda" else "cpu")
    keeps_all = config.learner.activation_checkpointing == "none"
    return ((memory.peak if keeps_all else memory.checkpointed_peak) - memory.copies) / GB


def peak_rate(where: torch.device) -> float | None:
    return next((rate for word, rate in PEAKS.items() if word in name_of(where)), None)


def name_of(where: torch.device) -> str:
    return torch.cuda.get_device_name(where) if where.type == "cuda" else "a CPU"


def shown(row: Row) -> None:
    """Prints what was not known of the row before."""
    if row.stages:
        print(f"    {row.stages}")
    elif row.roofline:
        print(f"    {row.roofline}")
    elif row.parts:
        print("    " + ", ".join(f"{part} {share:.0%}" for part, share in row.parts.shares.items() if share >= 0.005))
    else:
        print(line_of(row))
    sys.stdout.flush()


def line_of(row: Row) -> str:
    cells = [
        f"{row.seconds:8.2f} s" if row.seconds else "         –",
        f"{row.drawn_per_s:10,.0f} tok/s" if row.drawn_per_s else "",
        f"MFU {row.mfu:6.1%}" if row.mfu else "MFU      –",
        f"{row.peak_gb:6.1f} GB" if row.peak_gb else "     – GB",
        f"(estimated {row.estimated_gb:.1f})" if row.estimated_gb else "",
    ]
    return f"{row.shape:16}{row.mix:24}{row.micro_tokens:6} {row.way:36}" + "  ".join(cells)


def targets(
    rows: Sequence[Row], device: str = "", checkpointing: str = "", *, compiled: bool = False
) -> dict[str, bool]:
    """Checks the promises that `docs/gpu.md` makes of one GPU of this name; a shape without one is not judged by its
    speed, nor are layers that are not `compiled`."""
    ours = [row for row in rows if row.way.removesuffix(NO_MEMORY) == OURS]
    promises = {"every mix was trained": bool(rows) and all(row.seconds for row in ours)}
    judged = [row for row in ours if row.mfu is not None]
    if not judged:
        return promises
    for (shape, word, kept), least in LEAST_MFU.items():
        same = [row.mfu or 0 for row in judged if row.shape == shape and row.ranks == 1]
        if same and compiled and word in device.split() and kept == checkpointing:
            promises[f"MFU of {shape} at least {least:.0%} at the best mix: {max(same):.1%}"] = max(same) >= least
    errors = [abs(row.peak_gb / row.estimated_gb - 1) for row in judged if row.peak_gb and row.estimated_gb]
    if errors:
        named = f"peak memory within {MEMORY_ERROR:.0%} of the estimate: {max(errors):.0%}"
        promises[named] = max(errors) <= MEMORY_ERROR
    found = [row.stages for row in judged if row.stages]
    for stage, longest_s in LONGEST_S.items():
        if known := [took_s for stages in found if (took_s := getattr(stages, stage)) is not None]:
            promises[f"{stage} at most {longest_s:g}: {max(known):.3f}"] = max(known) <= longest_s
    return promises
