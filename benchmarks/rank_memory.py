"""The memory of each rank of a learner: its peak while it trains, publishes and saves, against its share of the state.

- The launcher starts the ranks; each loads a base model of random weights, and trains updates, with a snapshot for
  publication and a checkpoint, in the learner's own code and order. Checkpoints go to rclone on this machine's disk.
- A rank's share is what it has to hold for its own rows, in float32: masters, gradients, two moments, and the copy of
  masters and moments that is saved: 28 bytes for each of its parameters.
- The peak is that of its anonymous memory (`RssAnon`), sampled from outside every few milliseconds, less what it held
  before it loaded the model. Files that are mapped, and libraries, are not in it.
- Besides 1.3 × its share a rank may hold what no number of ranks divides (`Undivided`): the files of a checkpoint under
  way, the logits, the layers that are whole for the moment, and the activations; rank 0 also the weights that it
  publishes.
- Activations depend on the tokens of a micro-batch and not on the ranks. They are those that `echo-queue estimate`
  counts for the rank's micro-batch, with `--activation-checkpointing full` (the default here) or `none`.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.learner.work import Mix
from benchmarks.verdict import conclude
from echo_queue.capacity.estimate.learner_memory import MicroBatchShape, activations
from echo_queue.config import Config
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import DONE
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.models import shape_of
from echo_queue.records import Version
from learner.model import head
from learner.model.loading import load_policy
from learner.model.scorer import LOGITS_AT_ONCE
from learner.ranks import launcher
from learner.ranks.place import Place
from learner.ranks.rendezvous import join, leave
from learner.recovery.background_saver import BackgroundSaver
from learner.recovery.manifest import History
from learner.recovery.state_files import FILE_BYTES, THREADS
from learner.update import learn

Checkpointing = Literal["full", "none"]
MB = 1e6
SHARE_BYTES = 4 + 4 + 8 + 12
MOST_SHARES = 1.3
HIDDEN, INNER, VOCABULARY = 1024, 3072, 32_000
MIX = Mix(prompt=16, completion=72, groups=2, samples=8)
UPDATES = 3
SAMPLE_S = 0.004
DEADLINE_S = 900.0
BUCKET, KEYS = "benchmark", StoreKeys("BENCHMARKBENCHMARKBE", "benchmark")


@dataclass(frozen=True)
class Undivided:
    """Bytes that a rank holds at its peak however many ranks there are."""

    files: int
    """Files of a checkpoint that are made and put at a time"""
    logits: int
    """Logits, their exponentials and their gradient, each at its cap"""
    layers: int
    """Weights and gradients of two layers, and weights and two gradients of embeddings and head, whole"""
    activations: int
    """The bytes that autograd keeps of a rank's micro-batch, as `echo_queue.capacity.estimate` reckons them."""
    published: int
    """The whole weights that rank 0 publishes"""

    def of(self, rank: int) -> int:
        shared = self.files + self.logits + self.layers + self.activations
        return shared + (self.published if rank == 0 else 0)


@dataclass(frozen=True)
class Figures:
    """Figures of one rank. `ratio`: the peak without what is undivided, by the share."""

    rank: int
    ranks: int
    parameters: int
    share_mb: float
    undivided_mb: float
    before_mb: float
    peak_mb: float
    peak_phase: str
    phases_mb: dict[str, float]
    """The peak within each phase"""
    ratio: float
    most_logits: int


class Sizes(NamedTuple):
    rank: int
    ranks: int
    parameters: int
    undivided: Undivided


class Sample(NamedTuple):
    """Anonymous memory of a process at a time of the monotonic clock."""

    time_s: float
    bytes: int


class Phase(NamedTuple):
    """A part of a rank's work, and when it began."""

    time_s: float
    name: str


# The ranks ------------------------------------------------------------------------------------------------------------


def run_rank(directory: Path) -> int:
    """Runs in each rank: what the learner's loop does, without a queue."""
    config = Config.model_validate(orjson.loads((directory / "settings.json").read_bytes()))
    place, cpu = Place.of(os.environ), torch.device("cpu")
    assert place is not None
    launcher.end_with_launcher()
    torch.set_num_threads(1)
    most = count_logits()
    team = join(config, place, cpu, threading.Event())
    store = store_at(str(config.store.url))
    note = Phases(directory / f"phases-{team.rank}").note
    note("load")
    policy = load_policy(config, cpu, team)
    saver = BackgroundSaver(store, team, DEADLINE_S)
    groups = MIX.batch(policy.vocabulary)
    published: dict[str, Tensor] = {}
    for number in range(1, UPDATES + 1):
        note(f"update {number}")
        learn(policy, groups, number, config.learner, 1.0)
        note(f"snapshot {number}")
        published = policy.snapshot()
        note(f"copy {number}")
        saver.wait()
        saver.begin(Version(1, number), policy.pieces(), History())
    note("last save")
    saver.wait()
    note("end")
    (directory / f"logits-{team.rank}").write_text(str(max(most)))
    assert bool(published) == team.first
    team.report("end", b"")
    team.share(lambda: b"".join(team.reports("end", DEADLINE_S)))
    team.settle()
    leave()
    return DONE


class Phases:
    """Writes when a rank began which part of its work."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def note(self, phase: str) -> None:
        with self._file.open("a") as lines:
            lines.write(f"{time.monotonic()} {phase}\n")


def count_logits() -> list[int]:
    """Returns a list to which from now on the number of each piece of logits is added."""
    counts: list[int] = [0]
    compute = head._logits

    def counted(*arguments: Any) -> Tensor:
        logits = compute(*arguments)
        counts.append(logits.numel())
        return logits

    head._logits = counted  # type: ignore[assignment]
    return counts


def store_at(url: str) -> ObjectStore:
    server_endpoint = replace(S3Server(Path(os.devnull), KEYS).endpoint(BUCKET), url=url, directory=None, put_once=True)
    return ObjectStore(server_endpoint, "run", DEADLINE_S)


# From outside ---------------------------------------------------------------------------------------------------------


def measure(directory: Path, ranks: int, layers: int, dtype: str, checkpointing: Checkpointing) -> list[Figures]:
    """Runs the ranks to their end, and returns the figures of each."""
    parameters, largest, root = make_base(directory / "base", layers)
    server = S3Server(directory / "s3", KEYS)
    server.start()
    try:
        store_at(server.url).create_bucket()
        (directory / "settings.json").write_bytes(
            orjson.dumps(settings(directory, server.url, ranks, dtype, checkpointing))
        )
        command = [sys.executable, "-m", "benchmarks.rank_memory", "--directory", str(directory)]
        started = launcher.start(command, ranks)
        samples = sampled(started)
        if (ended := launcher.wait(started))[0] != DONE:
            raise SystemExit(f"the ranks failed: {ended[1]}")
    finally:
        server.stop()
    width = torch.finfo(getattr(torch, dtype)).bits // 8
    undivided = Undivided(
        files=THREADS * FILE_BYTES,
        logits=3 * 4 * LOGITS_AT_ONCE["cpu"],
        layers=2 * 2 * 4 * largest + 3 * 4 * root,
        activations=kept_activations(directory / "base", ranks, width, checkpointing),
        published=width * parameters,
    )
    return [
        figures(
            Sizes(rank, ranks, parameters, undivided),
            phases_of(directory, rank),
            samples[rank],
            logits_of(directory, rank),
        )
        for rank in range(ranks)
    ]


def make_base(folder: Path, layers: int) -> tuple[int, int, int]:
    """Writes a model of random weights; returns the parameters of it, of a layer, and of embeddings and head."""
    shape = Qwen3Config(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(shape)
    model.save_pretrained(folder)
    whole = sum(parameter.numel() for parameter in model.parameters())
    layer = sum(parameter.numel() for parameter in model.base_model.layers[0].parameters())
    return whole, layer, whole - layers * layer


def kept_activations(base: Path, ranks: int, width: int, checkpointing: Checkpointing) -> int:
    """Returns the bytes that the estimate counts for a rank's micro-batch, which is its part of the batch.

    `width`: bytes of the type in which the model computes.
    """
    rows = -(-MIX.groups * MIX.samples // ranks)
    batch = MicroBatchShape(-(-rows // MIX.samples), MIX.prompt - 1, rows, MIX.completion)
    shape = shape_of(orjson.loads((base / "config.json").read_bytes()), "")
    return activations(shape, batch, width, checkpointed=checkpointing == "full")


def settings(directory: Path, url: str, ranks: int, dtype: str, checkpointing: Checkpointing) -> dict[str, Any]:
    return {
        "run": {"name": "memory", "dir": str(directory / "run")},
        "store": {"url": url, "bucket": BUCKET},
        "model": {"base": str(directory / "base"), "dtype": dtype, "max_new_tokens": MIX.completion},
        "rollout": {"group_size": MIX.samples},
        "learner": {
            "ranks": ranks,
            "rank_deadline_s": DEADLINE_S,
            "device": "cpu",
            "batch_groups": MIX.groups,
            "activation_checkpointing": checkpointing,
        },
    }


def sampled(ranks: Sequence["subprocess.Popen[bytes]"]) -> list[list[Sample]]:
    """Returns the anonymous memory of each rank from its start until the first of them ends."""
    found: list[list[Sample]] = [[] for _ in ranks]
    while all(rank.poll() is None for rank in ranks):
        for rank, samples in zip(ranks, found, strict=True):
            samples.extend(anonymous(rank.pid))
        time.sleep(SAMPLE_S)
    return found


def anonymous(pid: int) -> Iterator[Sample]:
    """Yields a sample, unless the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in lines:
        if line.startswith("RssAnon"):
            yield Sample(time.monotonic(), int(line.split()[1]) << 10)


def figures(place: Sizes, phases: Sequence[Phase], samples: Sequence[Sample], most_logits: int) -> Figures:
    before = [sample.bytes for sample in samples if sample.time_s < phases[0].time_s][-1]
    peak = max(samples, key=lambda sample: sample.bytes)
    share = SHARE_BYTES * place.parameters / place.ranks
    undivided = place.undivided.of(place.rank)
    return Figures(
        rank=place.rank,
        ranks=place.ranks,
        parameters=place.parameters,
        share_mb=share / MB,
        undivided_mb=undivided / MB,
        before_mb=before / MB,
        peak_mb=(peak.bytes - before) / MB,
        peak_phase=[phase.name for phase in phases if phase.time_s <= peak.time_s][-1],
        phases_mb={
            phase.name: (most_within(samples, phase.time_s, end_s) - before) / MB
            for phase, end_s in zip(phases, [*(later.time_s for later in phases[1:]), math.inf], strict=True)
        },
        ratio=(peak.bytes - before - undivided) / share,
        most_logits=most_logits,
    )


def most_within(samples: Sequence[Sample], begin_s: float, end_s: float) -> int:
    """Returns the most bytes of the samples of a time; 0 for a time too short for any."""
    return max((sample.bytes for sample in samples if begin_s <= sample.time_s < end_s), default=0)


def phases_of(directory: Path, rank: int) -> list[Phase]:
    lines = (directory / f"phases-{rank}").read_text().splitlines()
    return [Phase(float(time_s), name) for time_s, name in (line.split(" ", 1) for line in lines)]


def logits_of(directory: Path, rank: int) -> int:
    return int((directory / f"logits-{rank}").read_text())


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=13, help="13 make 196 M parameters")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--activation-checkpointing", choices=("full", "none"), default="full")
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.directory:
        return run_rank(options.directory)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as the learner sets it, for the ranks
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Path(directory), options.ranks, options.layers, options.dtype, options.activation_checkpointing)
    print(f"{found[0].parameters / MB:.0f} M parameters, {options.ranks} ranks, {options.dtype}, update of {MIX}")
    for one in found:
        print(
            f"  rank {one.rank}  peak {one.peak_mb:6.0f} MB in {one.peak_phase}, {one.before_mb:.0f} MB before; "
            f"share {one.share_mb:.0f} MB, undivided {one.undivided_mb:.0f} MB, ratio {one.ratio:.2f}; "
            + ", ".join(f"{phase} {most:.0f}" for phase, most in one.phases_mb.items())
        )
    cap = LOGITS_AT_ONCE["cpu"]
    targets = {
        f"each rank's peak is at most {MOST_SHARES} × its share and what is undivided": all(
            one.ratio <= MOST_SHARES for one in found
        ),
        f"no rank holds more than {cap:,} logits at once": all(0 < one.most_logits <= cap for one in found),
    }
    return conclude(found, targets, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
