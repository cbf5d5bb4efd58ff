"""The whole quick start for several seeds, each from nothing: held-out score before and after, and the time it took.

    python -m benchmarks.three_seeds [--config configs/quickstart.toml] [--seeds 0 1 2] [--json]

A seed determines the base model's weights, its warm-up and all sampling, and here also the run's prompts. Scores are
those of `benchmarks.held_out`: greedy, by reasoning-gym's own scorer, on prompts never submitted.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from benchmarks.held_out import evaluate
from benchmarks.rows import Rows
from benchmarks.verdict import print_verdict
from echo_queue.config.loading import load
from echo_queue.reporting import metrics

BUILD = Path("build/three_seeds").absolute()
PROMPT_SEEDS_APART = 1_000_000
DEADLINE_S = 900
BASE_AT_MOST, FINAL_AT_LEAST, TRAINING_AT_MOST_S = 0.40, 0.90, 120.0


@dataclass(frozen=True)
class Outcome:
    """Held-out greedy scores, and the seconds of training (first wait to last update) and of the whole command."""

    seed: int
    base_score: float
    final_score: float
    training_s: float
    process_s: float
    updates: int
    mean_lag: float
    idle_share: float

    @property
    def good(self) -> bool:
        learned = self.base_score <= BASE_AT_MOST and self.final_score >= FINAL_AT_LEAST
        return learned and self.training_s <= TRAINING_AT_MOST_S


def run(path: Path, seed: int, prompts: int) -> Outcome:
    folder = BUILD / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    environ = os.environ | {"ECHO_QUEUE_RUN__SEED": str(seed), "ECHO_QUEUE_RUN__DIR": str(folder)}
    prompt_seed = load(path, environ).prompts.options.get("seed", 0) + seed * PROMPT_SEEDS_APART
    environ["ECHO_QUEUE_PROMPTS__OPTIONS__SEED"] = str(prompt_seed)
    began = time.monotonic()
    command = [sys.executable, "-m", "echo_queue.cli", "run", str(path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        said = done.stdout[-4000:] + done.stderr[-4000:]
        raise RuntimeError(f"the run ended with {done.returncode}:\n{said}")
    took = time.monotonic() - began
    config = load(path, environ)
    summary = metrics.summarise(metrics.read(folder / "metrics.jsonl"))
    return Outcome(
        seed=seed,
        base_score=evaluate(Path(config.base_model), config, prompts).score,
        final_score=evaluate(folder / "model", config, prompts).score,
        training_s=summary.seconds,
        process_s=took,
        updates=summary.updates,
        mean_lag=summary.mean_lag,
        idle_share=summary.idle_share,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.toml"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    disable_progress_bar()
    rows, outcomes = Rows(), list[Outcome]()
    for seed in options.seeds:
        with rows.row(f"seed {seed}"):
            outcomes.append(outcome := run(options.config, seed, options.prompts))
            _show(outcome)
    wanted = f"from {BASE_AT_MOST:.2f} or less to {FINAL_AT_LEAST:.2f} or more in {TRAINING_AT_MOST_S:.0f} s"
    targets = rows.promises | {f"seed {outcome.seed}: {wanted}": outcome.good for outcome in outcomes}
    if options.json:
        print_verdict(outcomes, targets)
    return 0 if all(targets.values()) else 1


def _show(outcome: Outcome) -> None:
    print(
        f"seed {outcome.seed}: {outcome.base_score:.3f} → {outcome.final_score:.3f} in {outcome.training_s:.0f} s of "
        f"training ({outcome.process_s:.0f} s in all, {outcome.updates} updates, mean lag {outcome.mean_lag:.2f}, "
        f"learner idle {outcome.idle_share:.0%}); wanted ≤ {BASE_AT_MOST:.2f} → ≥ {FINAL_AT_LEAST:.2f} in "
        f"{TRAINING_AT_MOST_S:.0f} s: {'yes' if outcome.good else 'no'}"
    )


if __name__ == "__main__":
    sys.exit(main())
