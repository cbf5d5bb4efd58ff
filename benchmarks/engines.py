"""Tokens per second of each engine compared with the bare one on the same prompts, and the pause of a swap.

- Engines: those that can be imported here. The bare ones are `generate` of transformers, and `LLM.generate` of vLLM
  with its own sampler; ours also return log-probabilities and spans, and draw by a seed for each sample.
- Models: Qwen3 architecture with random weights in float32, of 0.6 M (the quick start's) and 30 M parameters.
- Samples come in groups of 16 of a prompt of 12 to 28 tokens; all of them end at 64 tokens. Each engine has a process
  of its own, with one thread; ours and the bare one take turns, and the best of some runs counts.
- A swap is all that happens between two steps, load and probes included, while 32 samples are running.

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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from benchmarks.rows import Rows
from benchmarks.verdict import conclude
from echo_queue.config import Config
from echo_queue.records import Tokens, Version
from workers import engines
from workers.engines import SampleKey, SampleRequest

if TYPE_CHECKING:
    from echo_queue.weights import Manifest

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
"""The longest pause of a swap that is allowed for vLLM."""
CHILD_S = 600.0
"""Longest wait for one answer of an engine, its start included."""
CLOSING_S = 30.0
PAUSE = 0
ANSWER = "answer: "
TASK = "benchmark"


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
    """The median pause of a swap."""

    engine: str
    model: str
    pause_ms: float


@dataclass(frozen=True)
class Measured:
    speeds: list[Speed]
    pause: Pause


class Contestant(Protocol):
    def run(self, prompts: Sequence[Tokens]) -> int:
        """Generates `NEW` tokens for each of these prompts; returns how many in all."""


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=[*filter(importlib.util.find_spec, ("transformers", "vllm"))])
    parser.add_argument("--models", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--contest", choices=CONTESTANTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contest:
        contest(asked.contest, asked.models[0])
        return 0
    print("engine        model  samples  tokens/s  bare tokens/s  ratio", flush=True)
    rows, found = Rows(), list[Measured]()
    for model, engine in product(asked.models, asked.engines):
        with rows.row(f"{engine}, {model}"):
            found.append(measure(engine, model, asked.repeats))
            show(found[-1])
    return conclude(found, rows.promises | targets(found), as_json=asked.json)


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


def show(row: Measured) -> None:
    for speed in row.speeds:
        print(
            f"{speed.engine:12s}  {speed.model:>5s}  {speed.samples:7d}  {speed.tokens_s:8,.0f}  "
            f"{speed.bare_tokens_s:13,.0f}  {speed.ratio:5.2f}"
        )
    print(f"{row.pause.engine}, {row.pause.model}: a swap takes {row.pause.pause_ms:.1f} ms (median of {SWAPS})")


class Child:
    """One contestant in a process of its own: engines share no threads, caches or memory."""

    def __init__(self, name: str, size: str) -> None:
        command = [sys.executable, "-m", "benchmarks.engines", "--contest", name, "--models", size]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        self._name = name
        self._process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: int) -> float:
        """Returns tokens per second at so many samples, or milliseconds for `PAUSE`."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        deadline = threading.Timer(CHILD_S, self._process.kill)
        deadline.start()
        try:
            answers = (line for line in self._process.stdout if line.startswith(ANSWER))
            return float(next(answers).removeprefix(ANSWER))
        except StopIteration:
            raise RuntimeError(f"{self._name} ended without an answer, or did not answer for {CHILD_S:.0f} s") from None
        finally:
            deadline.cancel()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def measure(engine: str, size: str, repeats: int) -> Measured:
    with Child(engine, size) as ours, Child(f"bare {engine}", size) as bare:
        speeds = [Speed(engine, size, samples, *best_in_turns((ours, bare), samples, repeats)) for samples in BATCHES]
        return Measured(speeds, Pause(engine, size, ours.ask(PAUSE)))


def best_in_turns(children: Sequence[Child], samples: int, repeats: int) -> list[float]:
    """Returns the best tokens per second of each contestant, after one run to warm up."""
    rates = [[child.ask(samples) for child in children] for _ in range(repeats + 1)]
    return [max(seen) for seen in zip(*rates[1:], strict=True)]


# In a contestant's process --------------------------------------------------------------------------------------------


def contest(name: str, size: str) -> None:
    """Answers each number of samples on standard input with a line that has the tokens per second."""
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory, "model")
        make_model(size).save_pretrained(folder)
        contestant = CONTESTANTS[name](folder)
        for line in sys.stdin:
            print(f"{ANSWER}{answer(contestant, size, int(line))}", flush=True)


def answer(contestant: Contestant, size: str, asked: int) -> float:
    if asked == PAUSE:
        assert isinstance(contestant, Ours)
        return contestant.pause_ms(make_model(size, seed=1))
    return rate(contestant, size, asked)


def rate(contestant: Contestant, size: str, samples: int) -> float:
    """Measures tokens per second."""
    asked = prompts(SIZES[size]["vocab_size"], samples)
    began = time.perf_counter()
    return contestant.run(asked) / (time.perf_counter() - began)


def make_model(size: str, seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(tie_word_embeddings=False, max_position_embeddings=LONGEST, eos_token_id=None, **SIZES[size])
    )
    model.train(False)
    return model


def prompts(vocabulary: int, samples: int) -> list[Tokens]:
    random = np.random.default_rng(samples)
    lengths = random.integers(12, 29, size=-(-samples // GROUP))
    own = [random.integers(vocabulary, size=length, dtype=np.int32) for length in lengths]
    return [own[row // GROUP] for row in range(samples)]


class Ours:
    def __init__(self, name: str, folder: Path) -> None:
        config = Config.model_validate(
            {
                "run": {"name": "engines", "dir": str(folder.parent)},
                "model": {"base": str(folder), "max_prompt_tokens": LONGEST - NEW, "max_new_tokens": NEW},
                "rollout": {"engine": name, "group_size": GROUP, "concurrent_groups": max(BATCHES) // GROUP},
            }
        )
        self._engine = engines.create(config, str(folder), Version(1, 0), [])

    def run(self, prompts: Sequence[Tokens]) -> int:
        self._begin(prompts)
        made = 0
        while self._engine.running:
            made += sum(len(partial_sample.tokens) for partial_sample in self._engine.step().values())
        return made

    def pause_ms(self, other: Qwen3ForCausalLM) -> float:
        """Measures the median time between two steps when the weights of `other` are loaded in between."""
        from workers.weights.swap import WeightSwap

        tensors = {name: parameter.detach() for name, parameter in other.named_parameters()}
        swap, pauses = WeightSwap(self._engine), []
        self._begin(prompts(other.config.vocab_size, 32))
        for number in range(1, SWAPS + 1):
            self._engine.step()
            swap.swap(_manifest(number, tensors), tensors)
            pauses.append(1000 * swap.pause_s)
        self._engine.abort([TASK])
        return statistics.median(pauses)

    def _begin(self, prompts: Sequence[Tokens]) -> None:
        self._engine.add([SampleRequest(SampleKey(TASK, row), prompt, row, NEW) for row, prompt in enumerate(prompts)])


class BareTransformers:
    def __init__(self, folder: Path) -> None:
        self._model: Any = Qwen3ForCausalLM.from_pretrained(folder)

    @torch.inference_mode()
    def run(self, prompts: Sequence[Tokens]) -> int:
        columns = max(map(len, prompts))
        ids = torch.zeros(len(prompts), columns, dtype=torch.long)
        real = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, columns - len(prompt) :] = torch.from_numpy(prompt)
            real[row, columns - len(prompt) :] = 1
        settings: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW, "pad_token_id": 0}
        out = self._model.generate(ids, attention_mask=real, **settings)
        return int(out[:, columns:].numel())


class BareVllm:
    def __init__(self, folder: Path) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM, SamplingParams

        settings: dict[str, Any] = {"dtype": "float32", "max_model_len": LONGEST, "max_num_seqs": max(BATCHES)}
        settings |= {"enforce_eager": True, "skip_tokenizer_init": True, "kv_cache_memory_bytes": 1 << 30}
        self._llm = LLM(str(folder), **settings)
        self._sampling = SamplingParams(temperature=1.0, max_tokens=NEW, ignore_eos=True, detokenize=False)

    def run(self, prompts: Sequence[Tokens]) -> int:
        asked: Any = [{"prompt_token_ids": prompt.tolist()} for prompt in prompts]
        return sum(len(one.outputs[0].token_ids) for one in self._llm.generate(asked, self._sampling, use_tqdm=False))


CONTESTANTS: Mapping[str, Callable[[Path], Contestant]] = {
    "transformers": partial(Ours, "transformers"),
    "bare transformers": BareTransformers,
    "vllm": partial(Ours, "vllm"),
    "bare vllm": BareVllm,
}


def _manifest(number: int, tensors: Mapping[str, torch.Tensor]) -> "Manifest":
    # Imported here: these import numba, after which a bare vLLM does not start.
    from echo_queue.weights import Manifest, Route, TensorInfo
    from echo_queue.weights.delta.codes import dtype_name
    from echo_queue.weights.manifest import root_digest
    from echo_queue.weights.tensors import digest_of

    infos = tuple(
        TensorInfo(name, dtype_name(tensor), tuple(tensor.shape), digest_of(tensor)) for name, tensor in tensors.items()
    )
    version, root = Version(1, number), root_digest(infos, {})
    return Manifest("engines", version, infos, {}, root, Route("engines", version, None, root, None, ()))


if __name__ == "__main__":
    sys.exit(main())
