"""One update of the learner on this machine's device: tokens/s, MFU, memory and stalls, beside plain transformers.

- The models have the shapes of real ones and random weights; groups are random tokens of fixed lengths. Nothing is read
  from a network.
- MFU = FLOP / seconds / the device's peak in dense bfloat16. FLOP = 6 · (weights of the layers · packed tokens +
  weights of the head · drawn tokens) + 12 · layers · heads · head width · pairs of query and key that the mask allows.
  A shared prompt counts once, and what activation checkpointing computes again counts as nothing.
- The baseline is transformers' own forward pass with `sdpa`, in which every sample carries its prompt, with the same
  optimizer, precision, micro-batch size, activation checkpointing and head, which sees the drawn tokens only.
- `--fake` runs all of it with tiny shapes, on a CPU as well.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from benchmarks.verdict import conclude
from echo_queue.config import Learner
from echo_queue.records import Group, Sample, Span
from learner.batch.packing import Packing
from learner.batch.prepare import prepare
from learner.model import device
from learner.model.activations import checkpoint_layers
from learner.model.attention.rectangles import Rectangles
from learner.model.head import Head, token_scores
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.model.scorer import LOGITS_AT_ONCE
from learner.model.sharding import local, shard
from learner.update import learn

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""FLOP/s in dense bfloat16, by a word of the device's name (the makers' data sheets)."""
WEIGHTS: dict[str, dict[str, Any]] = {
    "fake": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 16, "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": True},
    "0.6B": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
             "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151_936, "tie_word_embeddings": True},
    "4B": {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151_936, "tie_word_embeddings": True},
    "8B": {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 128, "intermediate_size": 12_288, "vocab_size": 151_936, "tie_word_embeddings": False},
}  # fmt: skip
"""Qwen3's shapes."""
MFU, STALL_MS = 0.4, 50.0


@dataclass(frozen=True)
class Mix:
    """A batch of `groups` prompts with `samples` each: P tokens of prompt, T of completion."""

    prompt: int
    completion: int
    groups: int
    samples: int

    def __str__(self) -> str:
        return f"{self.groups}x{self.samples} of {self.prompt}+{self.completion}"

    @property
    def drawn(self) -> int:
        return self.groups * self.samples * self.completion

    def flop(self, model: PreTrainedModel) -> float:
        """FLOP of forward and backward, every prompt once (see the head of this file)."""
        settings = model.config.get_text_config()
        shared, own, samples = self.prompt - 1, self.completion, self.samples
        tokens = self.groups * (shared + samples * own)
        pairs = self.groups * (shared * (shared + 1) / 2 + samples * (own * shared + own * (own + 1) / 2))
        layers = sum(p.numel() for name, p in model.named_parameters() if ".layers." in name and p.ndim >= 2)
        head = settings.vocab_size * settings.hidden_size
        attention = 12 * settings.num_hidden_layers * settings.num_attention_heads * settings.head_dim * pairs
        return float(6 * (layers * tokens + head * self.drawn) + attention)


MIXES = {
    "fake": (Mix(8, 24, 3, 4), Mix(24, 8, 3, 4)),
    "real": (Mix(256, 3840, 2, 8), Mix(2048, 2048, 2, 8), Mix(7168, 1024, 2, 8)),
}


@dataclass(frozen=True)
class Row:
    """One way of training one mix. `mfu`: None where the device's peak is not known."""

    shape: str
    mix: str
    way: str
    seconds: float | None
    drawn_per_s: float | None = None
    mfu: float | None = None
    peak_gb: float | None = None
    snapshot_ms: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--fake", action="store_true", help="tiny shapes")
    parser.add_argument("--shapes", nargs="+", choices=WEIGHTS, default=["0.6B", "4B", "8B"])
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has; stated with the figures")
    parser.add_argument("--micro-tokens", type=int, default=16_384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--activation-checkpointing", choices=("none", "selective", "full"), default="full")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    where = device.choose("auto")
    if where.type == "cpu" and not options.fake:
        parser.error("there is no GPU here: run it with --fake, or on a machine that has one")
    settings = Learner(
        micro_tokens=64 if options.fake else options.micro_tokens,
        activation_checkpointing=options.activation_checkpointing,
        compile=options.compile,
        lr=1e-6,
    )
    print(
        f"torch {torch.__version__} on {name_of(where)}; {settings.activation_checkpointing} activation checkpointing"
    )
    rows = []
    for shape in ["fake"] if options.fake else options.shapes:
        sizes = WEIGHTS[shape] | ({"num_hidden_layers": options.layers} if options.layers else {})
        name = f"{shape}, {options.layers} layers" if options.layers else shape
        for mix in MIXES["fake" if options.fake else "real"]:
            rows += [shown(row) for row in measured(name, sizes, mix, settings, options.repeats)]
    return conclude(rows, targets(rows), as_json=options.json)


def measured(name: str, sizes: Mapping[str, Any], mix: Mix, settings: Learner, repeats: int) -> Iterator[Row]:
    """Yields ours, ours with rectangles where that is another way, and plain transformers."""
    where, draw = device.choose("auto"), np.random.default_rng(0)
    groups = [random_group(draw, mix, sizes["vocab_size"]) for _ in range(mix.groups)]

    ways: dict[str, Callable[[], Trainer]] = {"ours": lambda: Ours(sizes, settings, where, groups)}
    if where.type == "cuda":
        ways["rectangles"] = lambda: Ours(sizes, settings, where, groups, packing=Rectangles)
    ways["transformers"] = lambda: Plain(sizes, settings, where, groups)
    for way, trainer in ways.items():
        row = Row(name, str(mix), way, None)
        try:
            yield figures(row, trainer(), mix, repeats)
        except torch.cuda.OutOfMemoryError:
            yield replace(row, way=f"{way}: out of memory")
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()


class Trainer(Protocol):
    """One way of training the batch."""

    model: PreTrainedModel

    def update(self, number: int) -> None:
        """Takes one step on the batch."""

    def snapshot(self) -> object:
        """Copies the weights to publish."""


class Ours:
    """The learner's own update; `packing`: the kind of attention, None for the device's own."""

    def __init__(
        self,
        sizes: Mapping[str, Any],
        settings: Learner,
        where: torch.device,
        groups: Sequence[Group],
        packing: type[Packing] | None = None,
    ) -> None:
        self.model, self._settings, self._groups = for_scorer(random_model(sizes, where)), settings, groups
        self._policy = Policy(self.model, settings, torch.bfloat16)
        self._policy.packing = packing or self._policy.packing

    def update(self, number: int) -> None:
        learn(self._policy, self._groups, number, self._settings, 1.0)

    def snapshot(self) -> object:
        return self._policy.snapshot()


class Plain(torch.nn.Module):
    """transformers' forward pass over prompt + completion of every sample, and −A · log π of the completions."""

    def __init__(
        self, sizes: Mapping[str, Any], settings: Learner, where: torch.device, groups: Sequence[Group]
    ) -> None:
        super().__init__()
        self.model, self._settings, self._device = random_model(sizes, where), settings, where
        self.model.set_attn_implementation("sdpa")
        layers = self.model.base_model.layers
        assert isinstance(layers, torch.nn.ModuleList)
        checkpoint_layers(layers, settings.activation_checkpointing)
        shard(self, layers, torch.bfloat16, where)
        self._optimizer = torch.optim.AdamW(self.parameters(), lr=settings.lr, fused=True)
        update = prepare(groups, settings.advantage, settings.zero_variance)
        self._tokens, self._prompt = update.tokens, len(groups[0].prompt)
        samples = [(part.prompt, row) for part in update.groups for row in part.rows]
        self._text = torch.from_numpy(np.stack([np.concatenate([p, row.tokens]) for p, row in samples]).astype(int))
        self._advantages = torch.tensor([row.advantage for _, row in samples])

    def update(self, number: int) -> None:
        rows = max(1, self._settings.micro_tokens // self._text.shape[1])
        for text, advantages in zip(self._text.split(rows), self._advantages.split(rows), strict=True):
            (self(text.to(self._device), advantages.to(self._device)) / self._tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters(), self._settings.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def forward(self, text: Tensor, advantages: Tensor) -> Tensor:
        """text [R, P + T], advantages [R] → the summed loss."""
        hidden = self.model.base_model(text[:, :-1], use_cache=False).last_hidden_state[:, self._prompt - 1 :]
        head, targets = Head(self.model.get_output_embeddings().weight), text[:, self._prompt :]
        at_once = LOGITS_AT_ONCE[self._device.type]
        logprobs = token_scores(hidden.flatten(0, 1), head, targets.flatten(), 1.0, at_once).logprobs
        return -(logprobs.view(targets.shape) * advantages[:, None]).sum()

    def snapshot(self) -> object:
        return {name: local(p.detach()).to(torch.bfloat16, copy=True) for name, p in self.named_parameters()}


def random_model(sizes: Mapping[str, Any], where: torch.device) -> PreTrainedModel:
    """Returns a model of random weights in float32, made on the device."""
    torch.manual_seed(0)
    with torch.device(where):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(Qwen3Config(**sizes), dtype=torch.float32)
    model.eval()
    return model


def random_group(draw: np.random.Generator, mix: Mix, vocabulary: int) -> Group:
    """Returns a group of random tokens, half of it with a reward."""
    tokens = draw.integers(0, vocabulary, (mix.samples, mix.completion), np.int32)
    samples = tuple(
        Sample(row, np.full(mix.completion, -9.0, np.float32), (Span(0, 0),), float(place % 2), "stop")
        for place, row in enumerate(tokens)
    )
    prompt = draw.integers(0, vocabulary, mix.prompt, np.int32)
    return Group("set/0/0", "set", 0, 0, 1, "worker", 1, prompt, samples)


def figures(row: Row, trainer: Trainer, mix: Mix, repeats: int) -> Row:
    """Runs one update that warms up, then `repeats` that count."""
    flop, where = mix.flop(trainer.model), trainer.model.device
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.update(1)
    took = median(timed(partial(trainer.update, number)) for number in range(2, 2 + repeats))
    peak = next((rate for word, rate in PEAKS.items() if word in name_of(where)), None)
    return replace(
        row,
        seconds=took,
        drawn_per_s=mix.drawn / took,
        mfu=flop / took / peak if peak else None,
        peak_gb=torch.cuda.max_memory_allocated() / 1e9 if where.type == "cuda" else None,
        snapshot_ms=1e3 * median(timed(trainer.snapshot) for _ in range(repeats)),
    )


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds until the work and all of its kernels have ended."""
    synchronise()
    began = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - began


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def name_of(where: torch.device) -> str:
    return torch.cuda.get_device_name(where) if where.type == "cuda" else "a CPU"


def shown(row: Row) -> Row:
    cells = [
        f"{row.seconds:8.2f} s" if row.seconds else "         –",
        f"{row.drawn_per_s:10,.0f} tok/s" if row.drawn_per_s else "",
        f"MFU {row.mfu:6.1%}" if row.mfu else "MFU      –",
        f"{row.peak_gb:6.1f} GB" if row.peak_gb else "     – GB",
        f"snapshot {row.snapshot_ms:6.1f} ms" if row.snapshot_ms else "",
    ]
    print(f"{row.shape:16}{row.mix:24}{row.way:28}" + "  ".join(cells), flush=True)
    return row


def targets(rows: Sequence[Row]) -> dict[str, bool]:
    """Checks the promises that `docs/gpu.md` makes of one H200; other devices have no figures that are judged."""
    ours = [row for row in rows if row.way == "ours"]
    judged = [row for row in ours if row.mfu is not None]
    promises = {"every mix was trained": all(row.seconds for row in ours) and bool(ours)}
    if judged:
        best = max(row.mfu or 0 for row in judged)
        promises[f"MFU at least 40 % at the best mix: {best:.1%}"] = best >= MFU
        stall_ms = max(row.snapshot_ms or 0 for row in judged)
        promises[f"a snapshot takes at most {STALL_MS:.0f} ms: {stall_ms:.1f}"] = stall_ms <= STALL_MS
    return promises


if __name__ == "__main__":
    sys.exit(main())
