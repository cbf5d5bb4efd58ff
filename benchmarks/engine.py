"""Sampled tokens per second: the transformers engine against transformers' own `generate`, on one thread.

The model is that of the quick start (Qwen3 architecture, 0.6 M parameters, random weights), prompts have 12 to 28
tokens, at most 64 new ones. Stops "none": every sample runs to the end; "mixed": samples stop by themselves, after 35
tokens in the mean; only tokens up to the stop count. Only the engine returns log-probabilities.

    python -m benchmarks.engine
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from benchmarks.verdict import print_verdict
from echo_queue.records import Tokens, Version
from workers.engines import Prompt, Sampling
from workers.engines.transformers import TransformersEngine

VOCABULARY, NEW, GROUP = 512, 64, 16
STOPS = {"none": [VOCABULARY], "mixed": list(range(10))}
REPEATS = 5


def main() -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document, last")
    as_json = parser.parse_args().json
    rows, kept = [], True
    print("samples  stops   engine tokens/s  generate tokens/s  ratio")
    for stops, stop_tokens in STOPS.items():
        for groups in (1, 2, 8, 16):
            ours, theirs = compare(groups, stop_tokens)
            print(f"{groups * GROUP:7d}  {stops:5s}  {ours:15,.0f}  {theirs:17,.0f}  {ours / theirs:5.2f}", flush=True)
            kept = kept and ours >= theirs
            rows.append({"samples": groups * GROUP, "stops": stops, "ours": ours, "generate": theirs})
    if as_json:
        print_verdict(rows, {"never slower than generate": kept})


def compare(groups: int, stop_tokens: list[int]) -> tuple[float, float]:
    """Tokens per second of the engine and of `generate`."""
    torch.manual_seed(0)
    model = make_model(stop_tokens)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        engine = TransformersEngine(folder, Version(0, 0), "float32", 512, [])
    random = np.random.default_rng(0)
    prompts = [random.integers(VOCABULARY, size=random.integers(12, 29), dtype=np.int32) for _ in range(groups)]
    return best(lambda: run_engine(engine, prompts)), best(lambda: run_generate(model, prompts, stop_tokens))


def make_model(stop_tokens: list[int]) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
        tie_word_embeddings=False,
        max_position_embeddings=512,
    )
    model = Qwen3ForCausalLM(config)
    model.train(False)
    model.generation_config.eos_token_id = stop_tokens
    return model


def run_engine(engine: TransformersEngine, prompts: list[Tokens]) -> int:
    groups = engine.generate([Prompt(p, i) for i, p in enumerate(prompts)], GROUP, Sampling(NEW), threading.Event())
    return sum(len(completion.tokens) for group in groups for completion in group)


@torch.inference_mode()
def run_generate(model: Qwen3ForCausalLM, prompts: list[Tokens], stop_tokens: list[int]) -> int:
    columns = max(map(len, prompts))
    ids = torch.zeros(len(prompts) * GROUP, columns, dtype=torch.long)
    real = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row * GROUP : (row + 1) * GROUP, columns - len(prompt) :] = torch.from_numpy(prompt)
        real[row * GROUP : (row + 1) * GROUP, columns - len(prompt) :] = 1
    out = model.generate(  # type: ignore[misc]
        ids, attention_mask=real, do_sample=True, top_k=0, max_new_tokens=NEW, eos_token_id=stop_tokens, pad_token_id=0
    )
    stopped = torch.isin(out[:, columns:], torch.tensor(stop_tokens))
    return int((stopped.cumsum(-1) - stopped.long() == 0).sum())


def best(run: Callable[[], int]) -> float:
    """Tokens per second of the best of some runs, after one to warm up."""
    run()
    rates = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        tokens = run()
        rates.append(tokens / (time.perf_counter() - started))
    return max(rates)


if __name__ == "__main__":
    main()
