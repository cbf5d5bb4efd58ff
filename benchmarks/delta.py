"""Bytes and speed of weight deltas between consecutive versions of a model that is trained here.

- The model has four layers of the shapes of Qwen3-0.6B, 63 million parameters. It learns to predict the next byte of
  this repository's documentation, from random weights, by the learner's own `Policy`: float32 masters, AdamW, gradients
  clipped. Warm-up steps fill the optimizer's moments. Then it takes one or two steps at each learning rate, and the
  last of these makes the pair of versions. They are rounded to bfloat16, as they are published.
- The bound is the entropy of the differences given the exponent: the sum over exponents e of n(e) · H(d | e), where
  n(e) is the number of the model's elements whose base has the exponent e, d is the difference of an element's codes, 0
  included, and H the empirical entropy in bits. No tables are charged. "By tensor" counts e for each tensor by itself.
- Sizes count all that is sent: headers, digests and tables.
- Speeds are GB of model per second of one thread's CPU time, the best of some repeats. Encoding includes the comparison
  and the digests, applying in place the check of the digests.
- "Break-even": the rate of a link, in Mbit/s for each core that applies (or encodes), below which the bytes that
  classes save over gaps would take longer on the link than classes take longer on that core.

    python -m benchmarks.delta [--json] [--repeats 5]
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import zstandard
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from benchmarks.rows import Rows
from benchmarks.verdict import conclude
from echo_queue import config
from echo_queue.weights.delta import Settings, apply, encode
from echo_queue.weights.delta.classes import shift_and_mask
from echo_queue.weights.delta.codes import Codes, flat, on_host
from learner.model.policy import Policy

TEXTS = Path("docs")
BATCH, LENGTH = 2, 256
WARM_UP_STEPS, WARM_UP_LR = 16, 3e-4
TRAINED = {1e-6: 2, 3e-6: 2, 1e-5: 1, 1e-4: 1}
"""Learning rate → steps. The first two are usual in RL, and the promise is theirs."""
PROMISED = (1e-6, 3e-6)
MOST_SPARSE = 0.3
"""The share of changed elements from which on differences are coded for all of them."""
MOST_OF_BOUND = 1.10
ZSTD_LEVEL = 3
WAYS = {"classes": Settings(classes_below=1), "gaps": Settings(classes_below=0)}
"""Where links bind, and where cores do. They do not differ where most elements change."""
DENSE = {"dense": Settings()}

Versions = Mapping[str, Tensor]


@dataclass(frozen=True)
class Way:
    """One way to encode a pair: bytes per changed element, GB/s, and the kinds of pieces that it chose."""

    kinds: str
    bytes_per_change: float
    of_bound: float
    encode: float
    apply: float


@dataclass(frozen=True)
class Row:
    """The figures of one pair of versions. Bytes are per changed element, break-even rates in Mbit/s for each core.

    `ours`: the bytes with the default settings, those of `weights.coding = "small"`.
    """

    pair: str
    lr: float
    parameters: int
    changed: float
    ours: float
    ways: Mapping[str, Way]
    bound: float
    bound_by_tensor: float
    order_0: float
    zstd_of_xor: float
    index_and_value: float
    break_even_apply: float
    break_even_encode: float


def main() -> int:
    logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        f"pair          changed    ours  way      kinds              B/change  /bound  encode  apply   bound  by tensor"
        f"  order 0  xor+zstd-{ZSTD_LEVEL}  index+value  break-even apply, encode"
    )
    rows, found = Rows(), list[Row]()
    for name, lr, pair in trained_pairs():
        with rows.row(name):
            found.append(measure(name, lr, *pair, options.repeats))
            show(found[-1])
    promised = [row for row in found if row.lr in PROMISED and row.pair.startswith("bf16")]
    targets = {
        f"at most {MOST_OF_BOUND} of the entropy given the exponent, at lr 1e-6 and 3e-6": all(
            row.ours <= MOST_OF_BOUND * row.bound for row in promised
        ),
        "smaller than zstd of xor and than index + value everywhere": all(
            row.ours < min(row.zstd_of_xor, row.index_and_value) for row in found
        ),
    }
    return conclude(found, rows.promises or targets, as_json=options.json)


def show(row: Row) -> None:
    for name, way in row.ways.items():
        print(
            f"{row.pair:13} {row.changed:7.2%} {row.ours:7.3f}  {name:8} {way.kinds:18}"
            f" {way.bytes_per_change:8.3f} {way.of_bound:7.3f} {way.encode:7.2f} {way.apply:6.2f}"
            f" {row.bound:7.3f} {row.bound_by_tensor:10.3f} {row.order_0:8.3f} {row.zstd_of_xor:11.2f}"
            f" {row.index_and_value:12.2f} {row.break_even_apply:14.0f} {row.break_even_encode:9.0f}"
        )


def measure(name: str, lr: float, base: Versions, new: Versions, repeats: int) -> Row:
    old, made = codes(base), codes(new)
    changed = sum(int(np.count_nonzero(a != b)) for a, b in zip(old, made, strict=True))
    whole_old, whole_new = np.concatenate(old), np.concatenate(made)
    bound = given_exponent(whole_old, whole_new)
    sparse = changed < MOST_SPARSE * len(whole_new)
    ways = {
        way: measured(base, new, how, repeats, (changed, bound)) for way, how in (WAYS if sparse else DENSE).items()
    }
    xor = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress((whole_old ^ whole_new).view(np.uint8).data)
    slower, faster = next(iter(ways.values())), list(ways.values())[-1]
    saved = (faster.bytes_per_change - slower.bytes_per_change) * changed
    return Row(
        pair=name,
        lr=lr,
        parameters=len(whole_new),
        changed=changed / len(whole_new),
        ours=sum(len(shard.data) for shard in encode(base, new)) / changed,
        ways=ways,
        bound=bound / changed,
        bound_by_tensor=sum(given_exponent(a, b) for a, b in zip(old, made, strict=True)) / changed,
        order_0=order_0(whole_old, whole_new) / changed,
        zstd_of_xor=len(xor) / changed,
        index_and_value=4.0 + whole_new.itemsize,
        break_even_apply=mbit_per_s(saved, whole_new.nbytes, slower.apply, faster.apply),
        break_even_encode=mbit_per_s(saved, whole_new.nbytes, slower.encode, faster.encode),
    )


def measured(base: Versions, new: Versions, how: Settings, repeats: int, against: tuple[int, float]) -> Way:
    """`against`: the number of changed elements, and the bound in bytes."""
    shards = list(encode(base, new, settings=how))
    size = sum(len(shard.data) for shard in shards)
    states = [{name: tensor.clone() for name, tensor in base.items()} for _ in range(2)]
    decoded = []
    for repeat in range(repeats):
        state = states[repeat % 2]
        for name, tensor in base.items():
            state[name].copy_(tensor)
        decoded.append(timed(lambda state=state: [apply(shard.data, state, state) for shard in shards]))  # type: ignore[misc]
        if any(not torch.equal(flat(state[name]), flat(tensor)) for name, tensor in new.items()):
            raise SystemExit("applying the delta did not restore the encoded version")
    total = sum(tensor.nbytes for tensor in new.values())
    return Way(
        kinds="+".join(sorted({piece.kind for shard in shards for piece in shard.pieces} - {"same"})),
        bytes_per_change=size / against[0],
        of_bound=size / against[1],
        encode=total / min(timed(lambda: list(encode(base, new, settings=how))) for _ in range(repeats)) / 1e9,
        apply=total / min(decoded) / 1e9,
    )


def timed(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def mbit_per_s(saved: float, size: int, slower: float, faster: float) -> float:
    """Returns the rate at which the bytes saved take as long as the difference of two speeds in GB/s."""
    seconds = size / 1e9 * (1 / slower - 1 / faster)
    return 8e-6 * saved / seconds if seconds > 0 else 0.0


# ── the bound


def codes(tensors: Versions) -> list[Codes]:
    return [on_host(flat(tensor)) for tensor in tensors.values()]


def order_0(base: Codes, new: Codes) -> float:
    """Returns the bytes that the best code of differences needs."""
    differences = (new - base)[base != new]
    return entropy(differences, len(new))


def given_exponent(base: Codes, new: Codes) -> float:
    """Returns the bytes that the best code of differences needs if it knows the base's exponents."""
    shift, mask = shift_and_mask(base.itemsize)
    exponents, changed = ((base >> shift) & mask).astype(np.uint8), base != new
    counts = np.bincount(exponents, minlength=mask + 1)
    order = np.argsort(exponents[changed], kind="stable")
    ends = np.cumsum(np.bincount(exponents[changed], minlength=mask + 1))[:-1]
    parts = np.split((new - base)[changed][order], ends)
    return sum(entropy(part, int(count)) for part, count in zip(parts, counts, strict=True))


def entropy(differences: Codes, count: int) -> float:
    """Returns the bytes for `count` values with an ideal code: these, and zeros."""
    counts = np.append(np.unique(differences, return_counts=True)[1], count - len(differences))
    counts = counts[counts > 0]
    return float((counts * np.log2(count / counts)).sum() / 8)


# ── the versions


def trained_pairs() -> Iterator[tuple[str, float, tuple[Versions, Versions]]]:
    policy, batches = Policy(untrained(), config.Learner()), texts()
    began = time.monotonic()
    for _ in range(WARM_UP_STEPS):
        loss = learn(policy, next(batches), WARM_UP_LR)
    print(f"# warmed up to a loss of {loss:.2f} in {time.monotonic() - began:.0f} s")
    for lr, steps in TRAINED.items():
        for _ in range(steps):
            base = policy.snapshot()
            learn(policy, next(batches), lr)
        new = policy.snapshot()
        torch.set_num_threads(1)
        yield f"bf16 lr {lr:.0e}", lr, (rounded(base), rounded(new))
        if lr in PROMISED[:1]:
            yield f"fp32 lr {lr:.0e}", lr, (base, new)
        torch.set_num_threads(THREADS)


def rounded(version: Versions) -> Versions:
    return {name: tensor.bfloat16() for name, tensor in version.items()}


def learn(policy: Policy, batch: Tensor, lr: float) -> float:
    loss: Tensor = policy.model(input_ids=batch, labels=batch).loss
    loss.backward()
    policy.clip_gradient()
    policy.step(lr)
    return loss.item()


def texts() -> Iterator[Tensor]:
    """Yields batches of the documentation's bytes."""
    text = np.frombuffer(b"".join(path.read_bytes() for path in sorted(TEXTS.glob("*.md"))), np.uint8)
    draw = np.random.default_rng(0)
    while True:
        starts = draw.integers(0, len(text) - LENGTH, BATCH)
        yield torch.from_numpy(np.stack([text[start : start + LENGTH] for start in starts]).astype(np.int64))


def untrained() -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=256,
            hidden_size=1024,
            num_hidden_layers=4,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=3072,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
        )
    )
    return model


THREADS = torch.get_num_threads()

if __name__ == "__main__":
    raise SystemExit(main())
