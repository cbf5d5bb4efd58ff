"""A pretrained chat model, SmolLM2-135M-Instruct: what it learns here in half an hour, and what TRL makes of it.

    python -m benchmarks.real_model [--updates 100] [--json]

Both train the model of configs/smollm2.toml (`make smollm2`) on the same prompts in the same order, with the same loss,
learning rate and rewards and as many samples; ours with one worker, so that learner and worker have a core each. TRL's
`GRPOTrainer` has the threads of both. Then the base model and both trained ones answer the held-out prompts, each most
likely token, and are compared prompt by prompt. Only an idle machine gives fair times.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.against_trl import RUNNING_UPDATES, TRL, Curve, Point, setting, trl_python, with_trl
from benchmarks.rows import Rows
from benchmarks.runs import echo_queue
from benchmarks.verdict import conclude
from configs.smollm2.make_model import make_in
from echo_queue.config.loading import load
from echo_queue.reporting import metrics

CONFIG = Path("configs/smollm2.toml")
BUILD = Path("build/real_model").absolute()
DEADLINE_S = 7_200.0
OURS, BASE = "echo-queue", "base"
MINUTES = 40.0
"""Our run should take no longer, the evaluations in it included."""
NEAR = 0.05
"""The held-out score that TRL's model may have more than ours."""


@dataclass(frozen=True)
class Trained:
    """The figures of one training. Times are in seconds; rewards are means of the first and last updates."""

    trainer: str
    updates: int
    samples: int
    first_update_s: float
    per_update_s: float
    training_s: float
    reward_first: float
    reward_last: float


@dataclass(frozen=True)
class Scored:
    """The held-out figures of one model, with the ends of the interval; `better`: the mean gain on the base model."""

    model: str
    mean: float
    low: float
    high: float
    better: float | None = None
    better_low: float | None = None
    better_high: float | None = None


def trained(curve: Curve) -> Trained:
    rewards, ends = [point.reward for point in curve.points], min(RUNNING_UPDATES, len(curve.points) // 2)
    first, last = curve.points[0], curve.points[-1]
    return Trained(
        trainer=curve.trainer,
        updates=len(rewards),
        samples=sum(point.samples for point in curve.points),
        first_update_s=first.time_s - curve.started_s,
        per_update_s=(last.time_s - first.time_s) / (len(rewards) - 1),
        training_s=last.time_s - curve.began_s,
        reward_first=sum(rewards[:ends]) / ends,
        reward_last=sum(rewards[-ends:]) / ends,
    )


def with_echo_queue(updates: int, base: Path) -> Curve:
    started = time.time()
    folder = BUILD / "run"
    echo_queue("run", CONFIG, folder, {"MODEL__BASE": base, "LEARNER__MAX_UPDATES": updates}, deadline_s=DEADLINE_S)
    log = metrics.read(folder / "metrics.jsonl")
    points = [Point(update.time_s, update.reward_mean, update.samples, update.tokens) for update in log]
    return Curve(OURS, started, metrics.began_s(log[0]), points)


def scored(name: str, folder: Path, base: Path, against: Path | None = None) -> tuple[Scored, Path]:
    """Returns what the held-out prompts say of a model, and the file of its answers."""
    out = BUILD / f"{name}.jsonl"
    words = [sys.executable, "-m", "echo_queue.cli", "eval", str(CONFIG), str(folder), f"--out={out}", "--json"]
    words += [f"--model.base={base}", f"--run.dir={BUILD / 'run'}", *([f"--against={against}"] if against else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words[2:6])} … ended with {done.returncode}:\n{done.stderr[-4000:]}")
    (figures,) = json.loads(done.stdout)["sets"]
    beside = figures["against"] or {"difference": None, "low": None, "high": None}
    gain = (beside["difference"], beside["low"], beside["high"])
    return Scored(name, figures["mean"], figures["low"], figures["high"], *gain), out


def targets(found: dict[str, Trained], scores: dict[str, Scored]) -> dict[str, bool]:
    ours, theirs = found[OURS], found[TRL]
    gain = scores[OURS].better_low
    return {
        f"{OURS} takes at most {MINUTES:.0f} minutes from its first update to its last": (
            ours.training_s <= 60 * MINUTES
        ),
        f"{OURS} is better on held-out prompts than the base model, beyond the interval": gain is not None and gain > 0,
        f"{OURS} is at most {NEAR} below {TRL} on held-out prompts": (scores[OURS].mean >= scores[TRL].mean - NEAR),
        f"{OURS} makes its updates in no more time than {TRL}": ours.training_s <= theirs.training_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=0, help="of each trainer; 0: as many as the prompts give")
    parser.add_argument("--trl-threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = load(CONFIG)
    updates = options.updates or config.prompts.options["size"] // config.learner.batch_groups
    if updates < 2 * RUNNING_UPDATES:
        parser.error(f"--updates {updates}: the means of the first and last updates need {2 * RUNNING_UPDATES} or more")
    base = Path(config.model.base).absolute()
    make_in(base)
    trl_python()
    shutil.rmtree(BUILD, ignore_errors=True)
    rows, found, scores = Rows(), dict[str, Trained](), dict[str, Scored]()
    folders = {OURS: BUILD / "run" / "model", TRL: BUILD / "trl" / "model"}
    trainers: dict[str, Callable[[], Curve]] = {
        OURS: lambda: with_echo_queue(updates, base),
        TRL: lambda: with_trl(setting(config, base, updates, options.trl_threads, BUILD / "trl"), DEADLINE_S),
    }
    for trainer, train in trainers.items():
        with rows.row(trainer):
            found[trainer] = trained(train())
            print(_line(found[trainer]))
    file = None
    for model, folder in {BASE: base, **folders}.items():
        with rows.row(f"{model}, held out"):
            scores[model], answers = scored(model, folder, base, file)
            file = file or answers
            print(_score_line(scores[model]))
    kept = rows.promises or targets(found, scores)
    return conclude({"trained": found, "held_out": scores}, kept, as_json=options.json)


def _line(one: Trained) -> str:
    return (
        f"{one.trainer}: {one.updates} updates of {one.samples:,} samples in {one.training_s / 60:.1f} min "
        f"({one.per_update_s:.1f} s each, the first after {one.first_update_s:.0f} s), "
        f"reward {one.reward_first:.2f} → {one.reward_last:.2f}"
    )


def _score_line(one: Scored) -> str:
    gain = (
        "" if one.better is None else f", {one.better:+.2f} [{one.better_low:+.2f}, {one.better_high:+.2f}] by prompt"
    )
    return f"{one.model}: held out {one.mean:.2f} [{one.low:.2f}, {one.high:.2f}]{gain}"


if __name__ == "__main__":
    sys.exit(main())
