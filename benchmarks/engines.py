"""Tokens per second of each engine beside the bare one on the same prompts, and for how long a swap holds it up.

- Engines: those that can be imported here. Bare is `generate` of transformers, and `LLM.generate` of vLLM with its own
  sampler; ours returns log-probabilities, spans and seeds of its own besides.
- Models: Qwen3 architecture with random weights in float32, of 0.6 M (the quick start's) and 30 M parameters.
- Samples come in groups of 16 of a prompt of 12 to 28 tokens; all of them end at 64 tokens. Best of some runs, taken in
  turns; one thread.
- A swap is all that stands between two steps: the gate with its load and its probes, 32 samples being under way.

    python -m benchmarks.engines [--json] [--repeats 5] [--engines transformers vllm] [--models 0.6M 30M]
"""

import argparse
import importlib.util
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from benchmarks.verdict import print_verdict
from echo_queue.config import Config
from echo_queue.records import Tokens, Version
from echo_queue.weights import Manifest, Route, TensorInfo
from echo_queue.weights.delta.codes import dtype_name
from echo_queue.weights.manifest import root_digest
from echo_queue.weights.tensors import digest_of
from workers import engines
from workers.engines import Engine, Key, Request
from workers.weights.gate import Gate

GROUP, NEW, LONGEST = 16, 64, 128
BATCHES = (1, 32, 256)
SWAPS = 21
SIZES: Mapping[str, Mapping[str, Any]] = {
    "0.6M": {
        "vocab_size": 512,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 256,
    },
    "30M": {
        "vocab_size": 4096,
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1536,
    },
}
ENOUGH = 0.95
LONGEST_PAUSE_MS = 50.0
"""Of vLLM."""
CHILD_S = 1800.0

Run = Callable[[Sequence[Tokens]], int]
"""Generates `NEW` tokens for each of these prompts, returns how many."""


@dataclass(frozen=True)
class Speed:
    engine: str
    model: str
    samples: int
    tokens_s: float
    bare_tokens_s: float

    @property
    def ratio(self) -> float:
        return self.tokens_s / self.bare_tokens_s


@dataclass(frozen=True)
class Pause:
    """Of a swap, median."""

    engine: str
    model: str
    pause_ms: float


@dataclass(frozen=True)
class Measured:
    speeds: list[Speed]
    pause: Pause


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document, last")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=[*filter(importlib.util.find_spec, ("transformers", "vllm"))])
    parser.add_argument("--models", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(orjson.dumps(measure(asked.engines[0], asked.models[0], asked.repeats)).decode())
        return
    rows = [apart(engine, model, asked.repeats) for model in asked.models for engine in asked.engines]
    print_table(rows)
    if asked.json:
        print_verdict(rows, targets(rows))


def targets(rows: Sequence[Measured]) -> dict[str, bool]:
    kept = {
        f"{row.pause.engine}, {row.pause.model}: at least {ENOUGH} of the bare engine": all(
            speed.ratio >= ENOUGH for speed in row.speeds
        )
        for row in rows
    }
    for row in rows:
        if row.pause.engine == "vllm":
            kept[f"vllm, {row.pause.model}: a swap takes at most {LONGEST_PAUSE_MS:.0f} ms"] = (
                row.pause.pause_ms <= LONGEST_PAUSE_MS
            )
    return kept


def print_table(rows: Sequence[Measured]) -> None:
    print("engine        model  samples  tokens/s  bare tokens/s  ratio")
    for speed in (speed for row in rows for speed in row.speeds):
        print(
            f"{speed.engine:12s}  {speed.model:>5s}  {speed.samples:7d}  {speed.tokens_s:8,.0f}  "
            f"{speed.bare_tokens_s:13,.0f}  {speed.ratio:5.2f}"
        )
    for row in rows:
        print(f"{row.pause.engine}, {row.pause.model}: a swap takes {row.pause.pause_ms:.1f} ms (median of {SWAPS})")


def apart(engine: str, model: str, repeats: int) -> Measured:
    """Measured in a process of its own: engines share no threads, caches or memory."""
    words = ["--measure", "--engines", engine, "--models", model, "--repeats", str(repeats)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.engines", *words]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=CHILD_S, check=True)
    said = orjson.loads(done.stdout.splitlines()[-1])
    return Measured([Speed(**speed) for speed in said["speeds"]], Pause(**said["pause"]))


# In that process ------------------------------------------------------------------------------------------------------


def measure(name: str, size: str, repeats: int) -> Measured:
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory, "model")
        make_model(size).save_pretrained(folder)
        with opened(name, folder) as engine, BARE[name](folder) as bare:
            rates = best_in_turns([ours(engine), bare], size, repeats)
            pause = paused(engine, make_model(size, seed=1))
    speeds = [Speed(name, size, samples, *both) for samples, both in zip(BATCHES, rates, strict=True)]
    return Measured(speeds, Pause(name, size, pause))


def make_model(size: str, seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(tie_word_embeddings=False, max_position_embeddings=LONGEST, eos_token_id=None, **SIZES[size])
    )
    model.train(False)
    return model


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Engine]:
    config = Config.model_validate(
        {
            "run": {"name": "engines", "dir": str(folder.parent)},
            "model": {"base": str(folder), "max_prompt_tokens": LONGEST - NEW, "max_new_tokens": NEW},
            "rollout": {"engine": name, "group_size": GROUP, "concurrent_groups": max(BATCHES) // GROUP},
        }
    )
    engine = engines.create(config, str(folder), Version(1, 0), [])
    try:
        yield engine
    finally:
        engine.close()


def ours(engine: Engine) -> Run:
    def run(prompts: Sequence[Tokens]) -> int:
        begin(engine, prompts)
        made = 0
        while engine.running:
            made += sum(len(draft.tokens) for draft in engine.step().values())
        return made

    return run


def begin(engine: Engine, prompts: Sequence[Tokens]) -> None:
    engine.add([Request(Key("benchmark", row), prompt, row, NEW) for row, prompt in enumerate(prompts)])


@contextmanager
def bare_transformers(folder: Path) -> Iterator[Run]:
    model = Qwen3ForCausalLM.from_pretrained(folder).eval()

    @torch.inference_mode()
    def run(prompts: Sequence[Tokens]) -> int:
        columns = max(map(len, prompts))
        ids = torch.zeros(len(prompts), columns, dtype=torch.long)
        real = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, columns - len(prompt) :] = torch.from_numpy(prompt)
            real[row, columns - len(prompt) :] = 1
        settings: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW, "pad_token_id": 0}
        out = model.generate(ids, attention_mask=real, **settings)
        return int(out[:, columns:].numel())

    yield run


@contextmanager
def bare_vllm(folder: Path) -> Iterator[Run]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(folder),
        dtype="float32",
        max_model_len=LONGEST,
        max_num_seqs=max(BATCHES),
        enforce_eager=True,
        skip_tokenizer_init=True,
        kv_cache_memory_bytes=1 << 30,
    )
    sampling = SamplingParams(temperature=1.0, max_tokens=NEW, ignore_eos=True, detokenize=False)

    def run(prompts: Sequence[Tokens]) -> int:
        asked: Any = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]
        return sum(len(one.outputs[0].token_ids) for one in llm.generate(asked, sampling, use_tqdm=False))

    yield run


BARE = {"transformers": bare_transformers, "vllm": bare_vllm}


def best_in_turns(runs: Sequence[Run], size: str, repeats: int) -> list[tuple[float, ...]]:
    """Of each of `BATCHES`, the best tokens per second of each run, after one to warm up."""
    return [tuple(_best(runs, prompts(size, samples), repeats)) for samples in BATCHES]


def _best(runs: Sequence[Run], prompts: Sequence[Tokens], repeats: int) -> list[float]:
    rates: list[list[float]] = [[] for _ in runs]
    for turn in range(repeats + 1):
        for run, seen in zip(runs, rates, strict=True):
            began = time.perf_counter()
            made = run(prompts)
            if turn:
                seen.append(made / (time.perf_counter() - began))
    return [max(seen) for seen in rates]


def prompts(size: str, samples: int) -> list[Tokens]:
    random = np.random.default_rng(samples)
    vocabulary = SIZES[size]["vocab_size"]
    own = [
        random.integers(vocabulary, size=random.integers(12, 29), dtype=np.int32) for _ in range(-(-samples // GROUP))
    ]
    return [own[row // GROUP] for row in range(samples)]


def paused(engine: Engine, other: Qwen3ForCausalLM) -> float:
    """Milliseconds from a step to the next one, when other weights are to be taken in between."""
    tensors = {name: parameter.detach() for name, parameter in other.named_parameters()}
    gate, pauses = Gate(engine), []
    begin(engine, prompts("0.6M", 32))
    for number in range(1, SWAPS + 1):
        engine.step()
        gate.swap(_manifest(number, tensors), tensors)
        pauses.append(1000 * gate.pause_s)
    engine.abort(["benchmark"])
    return statistics.median(pauses)


def _manifest(number: int, tensors: Mapping[str, torch.Tensor]) -> Manifest:
    infos = tuple(
        TensorInfo(name, dtype_name(tensor), tuple(tensor.shape), digest_of(tensor)) for name, tensor in tensors.items()
    )
    version, root = Version(1, number), root_digest(infos, {})
    return Manifest("engines", version, infos, {}, root, Route("engines", version, None, root, None, ()))


if __name__ == "__main__":
    main()
