"""Held-out score of a model folder: greedy answers to prompts that were never submitted, scored by reasoning-gym.

    python -m benchmarks.held_out                        the quick start's base and final model, run if need be
    python -m benchmarks.held_out MODEL_DIR [--config configs/quickstart.toml] [--prompts 500] [--json]

The benchmark shares no code with the pipeline's own engine and scorer: it uses `AutoModelForCausalLM.from_pretrained`,
`generate`, and the dataset's `score_answer`. Prompts come from a seed far from the run's and the warm-up's; a prompt
that is in one of those sets nevertheless (sets are drawn at random) is left out.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reasoning_gym
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from benchmarks.rows import Rows
from benchmarks.runs import models
from benchmarks.verdict import print_verdict
from echo_queue.config import Config
from echo_queue.config.loading import load
from learner.base_model.task import tasks_of, warmup_examples

HELD_OUT_SEED_OFFSET = 200_000_000
"""Distance from the run's own seed; the warm-up's seed is half as far."""
BATCH = 256
Entry = dict[str, Any]

GOOD = 0.90
"""The held-out score that a finished quick start reaches."""


@dataclass(frozen=True)
class HeldOut:
    """`score`: the mean of reasoning-gym's scores; `exact`: the share of answers equal to reasoning-gym's own."""

    model: str
    prompts: int
    score: float
    exact: float
    left_out: int
    """Number of prompts left out because the run or the warm-up has them too."""


def evaluate(folder: Path, config: Config, prompts: int) -> HeldOut:
    dataset, entries, left_out = held_out(config, prompts)
    answers = greedy(folder, [entry["question"] for entry in entries], config.model.max_new_tokens)
    pairs = list(zip(answers, entries, strict=True))
    score = sum(float(dataset.score_answer(answer, entry)) for answer, entry in pairs) / prompts
    exact = sum(answer == entry["answer"] for answer, entry in pairs) / prompts
    return HeldOut(str(folder), prompts, score, exact, left_out)


def held_out(config: Config, count: int) -> tuple[Any, list[Entry], int]:
    """Returns the dataset, `count` of its entries with distinct unseen prompts, and how many were left out."""
    task = tasks_of(config)[0]
    run = reasoning_gym.create_dataset(task.dataset, **config.prompts.options)
    seen = {entry["question"] for entry in run}
    seen |= {example.prompt for example in warmup_examples(task, config.model.init.warmup_prompts)}
    options = task.settings | {"seed": task.seed + HELD_OUT_SEED_OFFSET, "size": 100 * count}
    dataset: Any = reasoning_gym.create_dataset(task.dataset, **options)
    entries: list[Entry] = []
    left_out = 0
    for entry in dataset:
        if entry["question"] in seen:
            left_out += 1
            continue
        seen.add(entry["question"])
        entries.append(entry)
        if len(entries) == count:
            return dataset, entries, left_out
    raise SystemExit(f"{task.dataset} with {task.settings} has fewer than {count} prompts outside the run")


@torch.inference_mode()
def greedy(folder: Path, prompts: list[str], max_new_tokens: int) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers: list[str] = []
    for first in range(0, len(prompts), BATCH):
        batch = tokenizer(prompts[first : first + BATCH], return_tensors="pt", padding=True, padding_side="left")
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        output = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
        answers += tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers


def main() -> int:
    """Prints the scores; returns 1 if one is not known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="*", help="model folders; default: the run's base and final model")
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.toml"))
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    disable_progress_bar()
    config = load(options.config)
    rows, results = Rows(), list[HeldOut]()
    for folder in models(options.config, config, options.model):
        with rows.row(str(folder)):
            results.append(result := evaluate(folder, config, options.prompts))
            print(
                f"{result.model}: {result.score:.3f} on {result.prompts} held-out prompts, greedy "
                f"({result.exact:.3f} exact to the letter; {result.left_out} prompts left out, the run holds them)"
            )
    if options.json:
        print_verdict(results, rows.promises or {f"{GOOD:.2f} at the end": results[-1].score >= GOOD})
    return 1 if rows.lost else 0


if __name__ == "__main__":
    sys.exit(main())
