"""`echo-queue estimate`: prints what a run will need and how stale its data will be, as a table or as JSON."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from echo_queue.capacity.estimate import Assumptions, RunEstimate, estimate
from echo_queue.capacity.estimate.lag import Lag
from echo_queue.capacity.estimate.learner_memory import FRAGMENTS, LearnerMemory
from echo_queue.capacity.estimate.shared_card import SharedCard, learner_needs
from echo_queue.capacity.estimate.training_time import forward_passes
from echo_queue.capacity.estimate.worker_memory import WorkerMemory
from echo_queue.cli.output import print_json
from echo_queue.config import Config
from echo_queue.models import model_shape
from echo_queue.models.devices import CPU, MARGIN, learner_is_on_cpu, measured_thread_flops
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
OFFLOADED_MOMENTS = "on the card, of two for each weight; the others are in host memory"


def show(config: Config, file: Path | None, assumed: Assumptions, *, as_json: bool) -> None:
    """Prints the estimate of a run. `file`: the model's config.json, if the model is not on this machine."""
    if assumed.device == CPU or (not assumed.device and learner_is_on_cpu(config)):
        assumed = replace(assumed, thread_flops=measured_thread_flops())
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
            away = name == "moments" and config.learner.offload and memory.moments < 2 * memory.masters
            yield name.replace("_", " "), _bytes(size), OFFLOADED_MOMENTS if away else meaning
    yield "activations", _bytes(memory.activations), f"learner.micro_tokens = {config.learner.micro_tokens:,}"
    yield "… with checkpointing", _bytes(memory.checkpointed_activations), "of every layer"
    yield "logits", _bytes(memory.logits), "at most; computed in pieces"
    if memory.head_gradient:
        yield "head's gradient", _bytes(memory.head_gradient), "while its pieces are added up"
    yield "gradients of a layer", _bytes(memory.layer_gradients), "of its activations, at most"
    if memory.reduction:
        yield "reduction", _bytes(memory.reduction), "of a layer's gradient, in float32"
        yield "final reduction", _bytes(memory.final_reduction), "of the embeddings and the head, after all activations"
    yield "peak", _bytes(memory.peak), f"{_bytes(memory.checkpointed_peak)} with checkpointing; of the largest phase"
    if memory.context:
        yield "context", _bytes(memory.context), "of the GPU's driver and torch's kernels"
        fragments = memory.needed - memory.peak - memory.context
        yield "fragments", _bytes(fragments), f"{FRAGMENTS:.0%} of what comes and goes; the allocator cannot use it"
        yield "needed", _bytes(memory.needed), f"{_bytes(memory.checkpointed_needed)} with checkpointing"
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
    if again := found.recomputed_flops / found.flops_of_update:
        yield "computed again", f"{again:.0%}", 'of the operations, with activation_checkpointing = "full"'
    measured = ", measured here" if not found.device.memory else ""
    rate = f"{found.mfu:.0%} of {found.devices * found.device.flops / 1e12:,.4g} TFLOP/s{measured}"
    yield "T_train", _seconds(found.t_train_s), rate
    steps = f"encode {_seconds(sent.encode_s)}, link {_seconds(sent.transfer_s)}, apply {_seconds(sent.apply_s)}"
    yield "T_bcast", _seconds(sent.total_s), steps
    yield "generation of a group", _seconds(found.t_gen_s), f"{config.model.max_new_tokens:,} tokens"
    yield "generation of a batch", _seconds(found.generation_s), f"rollout.workers = {config.rollout.workers}"


def sentences(config: Config, found: RunEstimate) -> Iterator[str]:
    """Yields in words whether the learner fits, what it leaves of its card to workers, whether publications keep up,
    whether S holds, and how many workers would keep the learner busy."""
    if found.device.memory:
        yield _fit(config, found)
    if found.shared_card:
        yield _shared(config, found, found.shared_card)
    lag = found.lag_of_these_workers
    kept = "keeps up" if lag.publications_keep_up else "does not keep up, so some updates will not be published"
    yield f"Publishing every κ = {lag.kappa} updates {kept}: T_bcast / T_train needs {lag.kappa_needed}."
    yield _bound(lag)
    yield from _workers(config, found)


def _fit(config: Config, found: RunEstimate) -> str:
    """Says whether the learner fits its device with `MARGIN` of it free, and how it would."""
    learner, usable = found.learner, found.device.usable
    room = f"the {_bytes(usable)} that one {found.device.name} has for it (all but {MARGIN:.0%})"
    configured = config.learner.activation_checkpointing == "full"
    needed = learner_needs(config, learner)
    if needed <= usable:
        return f"The learner fits: {_bytes(needed)} of {room}."
    full, offload = 'learner.activation_checkpointing = "full"', "learner.offload = true"
    if learner.checkpointed_needed <= usable:
        least = _bytes(learner.checkpointed_needed)
        return f"The learner needs {_bytes(needed)} of {room}. It fits with {full}: {least}."
    if (offloaded := learner.offloaded.checkpointed_needed) <= usable and not config.learner.offload:
        how = offload if configured else f"{offload} and {full}"
        return f"The learner needs {_bytes(needed)} of {room}. It fits with {how}: {_bytes(offloaded)}."
    least = _bytes(min(needed, offloaded))
    return f"The learner does not fit: {least} at least, of {room}. Lower learner.micro_tokens, or take more devices."


def _shared(config: Config, found: RunEstimate, card: SharedCard) -> str:
    """Says what the learner's card has for the workers, if they are on it as well."""
    workers, memory = counted(card.workers, "worker"), found.device.memory
    if config.rollout.engine == "transformers":
        takes, left = (_bytes(card.workers * share * memory) for share in (card.least, card.each))
        return f"If {workers} shared the learner's card, they would take {takes}, and {left} is left."
    one = f"the model and one sample need {card.least:.2f}"
    if card.suffices:
        share = f"rollout.gpu_memory_utilization may be {card.each:.2f} at most ({workers})"
        return f"If workers share the learner's card, {share}; {one}."
    return f"The learner's card has no room for {workers} as well: {card.each:.2f} of it for each, and {one}."


def _bound(lag: Lag) -> str:
    """Says whether S holds with the configured workers, which is the one verdict on it."""
    worst = f"the worst lag is {counted(lag.worst, 'update')}"
    if lag.holds:
        return f"S = {lag.s} holds: {worst}."
    if lag.least_t_train_s == math.inf:
        return f"S = {lag.s} does not hold: {worst}, and S must be above κ = {max(lag.kappa, lag.kappa_needed)}."
    slower = f"an update every {_seconds(lag.least_t_train_s)} or more would keep it"
    return f"S = {lag.s} does not hold: {worst}. What comes too late is generated again; {slower}."


def _workers(config: Config, found: RunEstimate) -> Iterator[str]:
    """Says how idle the learner is with the configured workers, and how many would suffice."""
    enough = found.workers_needed
    if found.generation_s <= found.t_train_s:
        keep = "keeps" if config.rollout.workers == 1 else "keep"
        fewer = f"; {enough} would suffice" if enough < config.rollout.workers else ""
        yield f"{counted(config.rollout.workers, 'worker')} {keep} the learner busy{fewer}."
        return
    some = "takes" if config.rollout.workers == 1 else "take"
    slow = f"{counted(config.rollout.workers, 'worker')} {some} {found.generation_s / found.t_train_s:,.1f} times"
    yield (
        f"The learner is idle {found.idle_share:.0%} of its time: {slow} as long for a batch as it does. "
        f"{enough} such workers would suffice, if all of them are always busy."
    )
    if found.lag.worst > found.lag_of_these_workers.worst:
        worst, s = found.lag.worst, found.lag.s
        late = "" if worst <= s else f", and S = {s} would send some groups back: set S = {worst}"
        yield f"With so many the worst lag would be {counted(worst, 'update')}{late}."


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
