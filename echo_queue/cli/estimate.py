"""`echo-queue estimate`: prints what a run will need and how stale its data will be, as a table or as JSON."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from echo_queue.capacity.estimate import Assumptions, RunEstimate, estimate, model_shape
from echo_queue.capacity.estimate.learner_memory import LearnerMemory
from echo_queue.capacity.estimate.training_time import forward_passes
from echo_queue.capacity.estimate.worker_memory import WorkerMemory
from echo_queue.cli.output import print_json
from echo_queue.config import Config
from echo_queue.queue.counts import counted

Row = tuple[str, str, str]
"""A row of the table: what it counts, how much, and how that is reckoned."""

FILE_WIDTH = 110
"""Columns of the table where it does not go to a terminal."""

LEARNER_PARTS = {
    "base": "the frozen weights",
    "masters": "float32 weights that are trained",
    "moments": "two, in float32",
    "gradients": "float32",
    "compute_copy": "the weights that the passes compute with, and their gradients",
    "reference": "the base model, for learner.kl",
    "snapshot": "the weights that are being published",
    "newest": "the weights that were published last",
    "past": "what the last S updates replaced, for anchor = old",
    "checkpoint": "the copy of masters and moments that is being saved",
}
"""The parts of the learner's state, and what each of them is."""


def show(config: Config, file: Path | None, assumed: Assumptions, *, as_json: bool) -> None:
    """Prints the estimate of a run. `file`: the model's config.json, if the model is not on this machine."""
    found = estimate(config, model_shape(config, file), assumed)
    if as_json:
        print_json(found)
        return
    console = Console(highlight=False)
    width = console.width if console.is_terminal else FILE_WIDTH
    Console(highlight=False, width=width).print(_table(sections(config, found)))
    console.print()
    for sentence in sentences(config, found):
        console.print(sentence, soft_wrap=not console.is_terminal)


def sections(config: Config, found: RunEstimate) -> Iterator[tuple[str, Iterator[Row]]]:
    """Yields the table's parts, in the order in which they are printed."""
    yield "model", _model_rows(found)
    yield f"learner: {found.devices} × {found.device.name}", _learner_rows(config, found.learner)
    yield "worker", _worker_rows(config, found.worker)
    yield "storage", _storage_rows(config, found)
    yield "time", _time_rows(config, found)


def _model_rows(found: RunEstimate) -> Iterator[Row]:
    shape = found.shape
    yield "parameters", _count(shape.total), ""
    yield "embedding", _count(shape.embedding), "the head is the same" if shape.tied else "and as many in the head"
    yield "active", _count(shape.active), "of one token"
    if found.trained < shape.total:
        yield "trained", _count(found.trained), "the adapters"


def _learner_rows(config: Config, memory: LearnerMemory) -> Iterator[Row]:
    for name, meaning in LEARNER_PARTS.items():
        if size := getattr(memory, name):
            yield name.replace("_", " "), _bytes(size), meaning
    yield "activations", _bytes(memory.activations), f"learner.micro_tokens = {config.learner.micro_tokens:,}"
    yield "… with checkpointing", _bytes(memory.checkpointed_activations), "of every layer"
    yield "logits", _bytes(memory.logits), "at most; computed in pieces"
    if memory.head_gradient:
        yield "head's gradient", _bytes(memory.head_gradient), "while its pieces are added up"
    yield "peak", _bytes(memory.peak), f"{_bytes(memory.checkpointed_peak)} with checkpointing"
    if memory.host:
        offloaded = ", and what is offloaded" if config.learner.offload else ""
        yield "host memory", _bytes(memory.host), f"the newest version, the checkpoint's copy{offloaded}"


def _worker_rows(config: Config, worker: WorkerMemory) -> Iterator[Row]:
    yield "weights", _bytes(worker.weights), config.model.dtype
    tokens = f"{worker.tokens_in_flight:,} tokens of {worker.kv_per_token:,} bytes"
    yield "KV cache", _bytes(worker.kv_cache), tokens
    yield "on the engine's device", _bytes(worker.engine), "without what the engine needs for itself"
    yield "host memory", _bytes(worker.host), "the staged weights, and parts"


def _storage_rows(config: Config, found: RunEstimate) -> Iterator[Row]:
    measured = "by the bytes per change measured in docs/weights.md"
    yield "checkpoint", _bytes(found.checkpoint_bytes), "masters and moments"
    if config.model.lora.rank:
        yield "delta", _bytes(found.broadcast.delta_bytes), "by the bytes per value measured in docs/lora.md"
    elif config.model.dtype == "float32":
        yield "delta, every value changed", _bytes(found.broadcast.delta_bytes), measured
    else:
        for change, size in found.deltas.items():
            yield f"delta, {change * 100:.3g}% changed", _bytes(size), measured
    yield "anchor", _bytes(found.anchor_bytes), "once the deltas since the last one come to twice its bytes"


def _time_rows(config: Config, found: RunEstimate) -> Iterator[Row]:
    batch, sent = found.batch, found.broadcast
    length = f"at {batch.prompt_tokens + batch.sample_tokens:,} tokens"
    yield "operations per token", _count(found.flops_per_token), length
    yield "tokens of an update", _count(batch.sampled), f"{batch.groups} × {batch.samples} × {batch.sample_tokens:,}"
    if besides := forward_passes(config):
        yield "forward passes besides", f"{besides:.3g}", "of all tokens of an update, without a gradient"
    rate = f"{found.mfu:.0%} of {found.devices * found.device.flops / 1e12:,.4g} TFLOP/s"
    yield "T_train", _seconds(found.t_train_s), rate
    steps = f"encode {_seconds(sent.encode_s)}, link {_seconds(sent.transfer_s)}, apply {_seconds(sent.apply_s)}"
    yield "T_bcast", _seconds(sent.total_s), steps
    yield "generation of a group", _seconds(found.t_gen_s), f"{config.model.max_new_tokens:,} tokens"
    yield "generation of a batch", _seconds(found.generation_s), f"rollout.workers = {config.rollout.workers}"


def sentences(config: Config, found: RunEstimate) -> Iterator[str]:
    """Yields in words whether the learner fits, whether publications keep up, and whether S holds."""
    learner, lag = found.learner, found.lag
    if found.device.memory:
        room = f"the {_bytes(found.device.memory)} of a {found.device.name}"
        configured = config.learner.activation_checkpointing == "full"
        peak = learner.checkpointed_peak if configured else learner.peak
        if peak <= found.device.memory:
            yield f"The learner fits: {_bytes(peak)} of {room}."
        elif learner.checkpointed_peak <= found.device.memory:
            yield f"The learner fits {room} only with activation checkpointing: {_bytes(learner.checkpointed_peak)}."
        elif (offloaded := learner.offloaded.checkpointed_peak) <= found.device.memory:
            how = "learner.offload and activation checkpointing"
            yield f"The learner fits {room} only with {how}: {_bytes(offloaded)}."
        else:
            yield f"The learner does not fit: {_bytes(learner.checkpointed_peak)} at least, of {room}."
    kept = "keeps up" if lag.publications_keep_up else "does not keep up, so some updates will not be published"
    yield f"Publishing every κ = {lag.kappa} updates {kept}: T_bcast / T_train needs {lag.kappa_needed}."
    verdict = "holds" if lag.holds else "does not hold"
    least = f"It holds while an update takes {_seconds(lag.least_t_train_s)} or more."
    never = f"It holds at no speed of the learner: S must be above κ = {max(lag.kappa, lag.kappa_needed)}."
    within = least if lag.least_t_train_s < math.inf else never
    waits = "; where it waits, it may reach S" if lag.holds and lag.worst < lag.s else ""
    worst = f"while the learner never waits, the worst lag is {counted(lag.worst, 'update')}{waits}"
    yield f"S = {lag.s} {verdict}: {worst}. {within}"
    share = found.generation_s / found.t_train_s
    if share > 1:
        slow = f"The workers take {share:,.1f} times as long for a batch as the learner, which waits for them"
        yield f"{slow}: the worst lag is then {counted(found.lag_of_these_workers.worst, 'update')}."


def _table(sections: Iterable[tuple[str, Iterable[Row]]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for title, rows in sections:
        table.add_row(f"[bold]{title}[/]")
        for name, amount, how in rows:
            table.add_row(f"  {name}", amount, how)
    return table


def _count(number: float) -> str:
    return f"{number:,}" if number < 1e6 else f"{number / 1e6:,.1f} M" if number < 1e9 else f"{number / 1e9:,.3f} B"


def _bytes(size: float) -> str:
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:,.2f} {unit}"
    return f"{size:,.0f} bytes"


def _seconds(seconds: float) -> str:
    for unit, step in (("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * step:
            return f"{seconds / step:,.1f} {unit}"
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:,.1f} ms"
