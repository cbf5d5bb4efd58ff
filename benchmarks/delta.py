"""Bytes and speed of weight deltas, compared with the entropy bound of each pair of versions and three plain encodings.

- Real pairs: consecutive checkpoints (and one 8 updates apart) of the quick start's model, trained here by the
  learner's own `Policy` at several learning rates; made once, in build/delta.
- Synthetic pairs: 64 MiB of bfloat16, Gaussian weights with σ = 0.02, updates tuned to a share of changed elements.
- The bound is that of independent elements: the order-0 entropy of the code differences of the whole model. "by tensor"
  is the same for each tensor by itself. It cannot exceed log2 n bits for a tensor of n elements, so with fp32, where
  nearly every difference is unique, it bounds nothing.
- Speeds are GB of model per second in one thread: by CPU time the best of some repeats and (in parentheses) their
  median, then the best by the clock. "encode" includes the diff, "apply" is in place, "to a copy" copies the base
  first; "+digests" and "+check" include every result's BLAKE3. BLAKE3 and memcpy alone are measured for comparison.

    python -m benchmarks.delta [--json] [--repeats 7]
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from blake3 import blake3
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer
from transformers.utils import logging

from benchmarks.verdict import print_verdict
from echo_queue import config as configuration
from echo_queue.config.loading import load
from echo_queue.weights.delta import Settings, apply, encode
from echo_queue.weights.delta.codes import Codes, flat, on_host
from learner import base_model
from learner.base_model.task import task_of, warmup_examples
from learner.batch.micro_batches import micro_batches
from learner.batch.prepare import PromptSamples, SampleRow, Update
from learner.model.loading import load_policy
from learner.ranks.team import Team

BUILD = Path("build/delta").absolute()
QUICKSTART = Path("configs/quickstart.toml")
TRAINED = tuple((dtype, lr) for dtype in ("bfloat16", "float32") for lr in (1e-6, 1e-5, 1e-4, 1e-3))
"""The quick start's own learning rate is 1e-4."""
FIRST, SKIP = 20, 8
"""Updates before the version at which the deltas begin, and updates that the skip delta spans."""
BATCH = 64
SHARES = (0.005, 0.01, 0.02, 0.05, 0.10, 0.80)
SYNTHETIC_TENSORS, SYNTHETIC_SIZE = 16, 1 << 21
TARGETED = (0.01, 0.05)
"""The range of shares of changed elements to which the targets apply."""
SMALLEST = Settings(ranked_below=1)

Versions = Mapping[str, Tensor]


@dataclass(frozen=True)
class Speed:
    """GB/s: the best and the median by CPU time, and the best by the clock."""

    best: float
    median: float
    clock: float

    def __str__(self) -> str:
        return f"{self.best:.2f} ({self.median:.2f}) {self.clock:.2f}"


@dataclass(frozen=True)
class Row:
    """The figures of one pair. `bytes_per_change` counts everything that is sent."""

    pair: str
    kinds: str
    changed: float
    bytes_per_change: float
    of_full: float
    of_bound: float
    of_bound_by_tensor: float
    speeds: Mapping[str, Speed]
    load: float
    baselines: Mapping[str, "Baseline"]


@dataclass(frozen=True)
class Baseline:
    bytes_per_change: float
    encode: float
    apply: float


def main() -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print("pair                     kinds   changed  B/change  of full  /bound  /by tensor   load")
    real = [shown(measure(name, *pair, options.repeats)) for name, pair in trained_pairs()]
    synthetic = []
    for share in SHARES:
        base, new = synthetic_pair(share)
        synthetic.append(shown(measure(f"synthetic {share:.1%}", base, new, options.repeats)))
        shown(measure(f"synthetic {share:.1%} smallest", base, new, 1, SMALLEST))
    names = list(real[0].speeds)
    print("\nGB/s: best (median), by the clock" + "".join(f"{name:>22}" for name in names))
    for row in real + synthetic:
        print(f"{row.pair:33}" + "".join(f"{row.speeds[name]!s:>22}" for name in names))
    print("\nB/change; encode, apply GB/s     " + "".join(f"{name:>24}" for name in BASELINES))
    for row in real + synthetic:
        cells = (f"{b.bytes_per_change:8.2f} {b.encode:7.2f} {b.apply:7.2f}" for b in row.baselines.values())
        print(f"{row.pair:33}" + "".join(f"{cell:>24}" for cell in cells))
    targets = judged(real, synthetic)
    for promise, kept in targets.items():
        print(f"{'kept  ' if kept else 'MISSED'}  {promise}")
    if options.json:
        print_verdict({"real": real, "synthetic": synthetic}, targets)


def judged(real: list[Row], synthetic: list[Row]) -> dict[str, bool]:
    targeted = [row for row in synthetic if TARGETED[0] * 0.9 <= row.changed <= TARGETED[1] * 1.1]
    most = [row for row in real if row.changed > 0.5]
    return {
        "at most 1.25 bytes per changed element at 1-5 % changed": all(r.bytes_per_change <= 1.25 for r in targeted),
        "within 1.15 of the bound at 1-5 % changed": all(row.of_bound <= 1.15 for row in targeted),
        "quick start, most elements changed: within 1.3 of the bound": bool(most)
        and all(row.of_bound <= 1.3 for row in most),
        "encode with the diff at 2.5 GB/s or more at 1-5 % changed": slowest(targeted, "encode") >= 2.5,
        "apply at 5 GB/s or more at 1-5 % changed": slowest(targeted, "apply") >= 5,
    }


def slowest(rows: list[Row], what: str) -> float:
    return min(row.speeds[what].best for row in rows)


def shown(row: Row) -> Row:
    print(
        f"{row.pair:24} {row.kinds:7} {row.changed:7.2%} {row.bytes_per_change:9.3f} {row.of_full:8.2%}"
        f" {row.of_bound:7.3f} {row.of_bound_by_tensor:11.3f} {row.load:6.1f}",
        flush=True,
    )
    return row


def measure(name: str, base: Versions, new: Versions, repeats: int, how: Settings | None = None) -> Row:
    total = sum(tensor.nbytes for tensor in new.values())
    old_codes, new_codes = codes(base), codes(new)
    differences = [b - a for a, b in zip(old_codes, new_codes, strict=True)]
    changed = sum(int(np.count_nonzero(part)) for part in differences)
    shards = list(encode(base, new, settings=how))
    size = sum(len(shard.data) for shard in shards)
    found = {piece.kind for shard in shards for piece in shard.pieces if piece.kind != "same"}
    speeds = measured(base, new, [shard.data for shard in shards], repeats, how)
    row = Row(
        pair=name,
        kinds="+".join(sorted(found)) if len(found) < 2 else "mixed",
        changed=changed / sum(map(len, new_codes)),
        bytes_per_change=size / changed,
        of_full=size / total,
        of_bound=size / order_0(np.concatenate(differences)),
        of_bound_by_tensor=size / sum(map(order_0, differences)),
        speeds={what: Speed(*(total / taken / 1e9 for taken in times)) for what, times in speeds.items()},
        load=os.getloadavg()[0],
        baselines={},
    )
    return row if how else replace(row, baselines=baselines(old_codes, new_codes, changed, total))


Times = tuple[float, float, float]
"""Seconds: the least and the median of CPU time, and the least by the clock."""


def measured(
    base: Versions, new: Versions, shards: list[bytes], repeats: int, how: Settings | None
) -> dict[str, Times]:
    out = {key: torch.zeros_like(tensor) for key, tensor in new.items()}
    new_codes = codes(new)

    def run_apply(source: Versions, target: Versions, check: bool) -> None:
        for shard in shards:
            apply(shard, source, target, check=check)

    def in_place(check: bool) -> Times:
        fresh = [{key: tensor.clone() for key, tensor in base.items()} for _ in range(repeats)]
        left = iter(fresh)
        times = timed(lambda: run_apply(state := next(left), state, check), repeats)
        if any(codes(state)[at].tobytes() != part.tobytes() for state in fresh for at, part in enumerate(new_codes)):
            raise SystemExit("applying the delta did not restore the encoded version")
        return times

    run_apply(base, out, check=True)  # loads the compiled code
    digests = timed(lambda: [blake3(part.view(np.uint8).data).digest() for part in new_codes], repeats)
    encoded = timed(lambda: [None for _ in encode(base, new, settings=how)], repeats)
    return {
        "encode": (encoded[0] - digests[0], encoded[1] - digests[0], encoded[2] - digests[0]),
        "encode+digests": encoded,
        "apply": in_place(check=False),
        "apply+check": in_place(check=True),
        "to a copy": timed(lambda: run_apply(base, out, check=False), repeats),
        "blake3": digests,
        "memcpy": timed(lambda: [out[key].copy_(tensor) for key, tensor in new.items()], repeats),
    }


def timed(run: Callable[[], object], repeats: int) -> Times:
    times, clock = [], []
    for _ in range(repeats):
        began, began_clock = time.thread_time(), time.perf_counter()
        run()
        times.append(time.thread_time() - began)
        clock.append(time.perf_counter() - began_clock)
    return min(times), statistics.median(times), min(clock)


def codes(tensors: Versions) -> list[Codes]:
    return [on_host(flat(tensor)) for tensor in tensors.values()]


def order_0(values: Codes) -> float:
    """Returns the bytes that the best code of independent values needs."""
    shares = np.unique(values, return_counts=True)[1] / max(1, len(values))
    return float(-(shares * np.log2(shares)).sum()) * len(values) / 8


# ── the baselines


def plain(base: Codes, new: Codes) -> list[bytes]:
    places = np.flatnonzero(base != new)
    return [places.astype(np.int32).tobytes(), new[places].tobytes()]


def set_plain(parts: list[bytes], base: Codes) -> Codes:
    made = base.copy()
    made[np.frombuffer(parts[0], np.int32)] = np.frombuffer(parts[1], base.dtype)
    return made


def gap_xor(base: Codes, new: Codes) -> list[bytes]:
    places = np.flatnonzero(base != new)
    gaps = np.diff(places, prepend=0)
    if len(gaps) and gaps.max() > 0xFFFF:
        return [packed(gaps.astype(np.uint32)), packed(new[places] ^ base[places]), b"wide"]
    return [packed(gaps.astype(np.uint16)), packed(new[places] ^ base[places])]


def set_gap_xor(parts: list[bytes], base: Codes) -> Codes:
    made = base.copy()
    width = np.uint32 if len(parts) == 3 else np.uint16
    places = np.cumsum(np.frombuffer(unpacked(parts[0]), width), dtype=np.int64)
    made[places] ^= np.frombuffer(unpacked(parts[1]), base.dtype)
    return made


def dense_xor(base: Codes, new: Codes) -> list[bytes]:
    return [packed(base ^ new)]


def set_dense_xor(parts: list[bytes], base: Codes) -> Codes:
    changed: Codes = base ^ np.frombuffer(unpacked(parts[0]), base.dtype)
    return changed


def packed(values: Codes | NDArray[Any]) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(values.view(np.uint8).data)


def unpacked(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


BASELINES: dict[str, tuple[Callable[[Codes, Codes], list[bytes]], Callable[[list[bytes], Codes], Codes]]] = {
    "int32 + value": (plain, set_plain),
    "gap + xor + zstd": (gap_xor, set_gap_xor),
    "dense xor + zstd": (dense_xor, set_dense_xor),
}


def baselines(base: list[Codes], new: list[Codes], changed: int, total: int) -> dict[str, Baseline]:
    found = {}
    for name, (write, read) in BASELINES.items():
        sent = [write(a, b) for a, b in zip(base, new, strict=True)]
        for parts, a, b in zip(sent, base, new, strict=True):
            assert np.array_equal(read(parts, a), b)
        size = sum(len(part) for parts in sent for part in parts)
        wrote = timed(lambda write=write: [write(a, b) for a, b in zip(base, new, strict=True)], 3)[0]  # type: ignore[misc]
        made = timed(lambda read=read, sent=sent: [read(p, a) for p, a in zip(sent, base, strict=True)], 3)[0]  # type: ignore[misc]
        found[name] = Baseline(size / changed, total / wrote / 1e9, total / made / 1e9)
    return found


# ── synthetic pairs


def synthetic_pair(share: float) -> tuple[Versions, Versions]:
    low, high = 1e-9, 1e-2
    for _ in range(25):
        middle = (low * high) ** 0.5
        base, new = moved(0, 1 << 18, middle)
        low, high = (middle, high) if float((base != new).float().mean()) < share else (low, middle)
    pairs = [moved(number + 1, SYNTHETIC_SIZE, middle) for number in range(SYNTHETIC_TENSORS)]
    base_of = {f"layer.{number}": base for number, (base, _) in enumerate(pairs)}
    return base_of, {f"layer.{number}": new for number, (_, new) in enumerate(pairs)}


def moved(seed: int, size: int, step: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    master = torch.randn(size, generator=generator) * 0.02
    return master.bfloat16(), (master + torch.randn(size, generator=generator) * step).bfloat16()


# ── real pairs


def trained_pairs() -> Iterator[tuple[str, tuple[Versions, Versions]]]:
    for dtype, lr in TRAINED:
        versions = checkpoints(dtype, lr)
        name = f"{'bf16' if dtype == 'bfloat16' else 'fp32'} lr {lr:.0e}"
        yield name, (versions[0], versions[1])
        yield f"{name} skip {SKIP}", (versions[0], versions[2])


def checkpoints(dtype: str, lr: float) -> list[Versions]:
    """Returns versions FIRST, FIRST + 1 and FIRST + SKIP; trains them if they are missing."""
    files = [BUILD / f"{dtype}-{lr:.0e}-{number}.safetensors" for number in (FIRST, FIRST + 1, FIRST + SKIP)]
    if not all(file.exists() for file in files):
        train(dtype, lr, files)
    return [load_file(file) for file in files]


def train(dtype: str, lr: float, files: list[Path]) -> None:
    """Trains on the quick start's task, supervised, from its base model, and writes the versions."""
    environment = {"ECHO_QUEUE_RUN__DIR": str(BUILD), "ECHO_QUEUE_MODEL__DTYPE": dtype}
    settings = load(QUICKSTART, environment)
    folder = base_model.make(settings, say=lambda _: None)
    policy = load_policy(settings, torch.device("cpu"), Team.alone())
    updates = examples(settings, folder)
    for number in range(1, FIRST + SKIP + 1):
        update = next(updates)
        for batch in micro_batches(update, settings.learner.micro_tokens, policy.packing):
            (-policy.score(batch, 1.0).logprobs.sum() / update.tokens).backward()
        policy.step(lr)
        for file in files:
            if file.stem.endswith(f"-{number}"):
                save_file(policy.snapshot() or {}, file)


def examples(settings: configuration.Config, folder: Path) -> Iterator[Update]:
    """Yields batches of prompts with their right answers; only the answers' tokens are targets."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def ids(text: str) -> NDArray[np.int32]:
        return np.array(tokenizer(text)["input_ids"], np.int32)

    pairs = warmup_examples(task_of(settings), BATCH * (FIRST + SKIP))
    for start in range(0, len(pairs), BATCH):
        samples = []
        for pair in pairs[start : start + BATCH]:
            answer = ids(pair.answer)
            row = SampleRow(answer, np.zeros(len(answer), np.float32), np.ones(len(answer), np.bool_), 0.0)
            samples.append(PromptSamples(ids(pair.prompt), (row,)))
        yield Update(tuple(samples), sum(len(sample.rows[0].tokens) for sample in samples), 0)


if __name__ == "__main__":
    main()
