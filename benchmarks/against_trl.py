"""Reward against samples, tokens and seconds: this pipeline at several bounds S, and TRL's `GRPOTrainer`.

    python -m benchmarks.against_trl [--updates 0] [--bounds 0,1,8] [--plot docs/against_trl.svg] [--json]

All of them train the quick start's base model, one after the other on this machine, on the same prompts in the same
order, with as many samples of each, the same loss, learning rate and scorer; ours publish every version (κ = 1), and
have one worker, which keeps the learner busy: learner and worker have a core each. TRL has the threads of both. The
reward is that of the sampled groups, a running mean over 10 updates; tokens are those that the model drew, of samples
that were trained. *training* counts from the moment at which the trainer begins to wait for the first update's samples;
*process* counts from the start of the command, imports and services included, and so does *first update*, until that
has been made. Making the base model and installing TRL counts for none of them. TRL has an environment of its own under
build/, which is made at the first call, with the settings in `benchmarks/with_trl/train.py`.

Only an idle machine gives fair times: TRL's threads wait for one another, so other work slows it far more.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib

from benchmarks.rows import Rows
from benchmarks.runs import QUICK_START, quick_start
from benchmarks.verdict import conclude
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.reporting import metrics
from echo_queue.submission.sources.source import GENERATED

matplotlib.use("Agg")
from matplotlib import pyplot as plt

REWARD = 0.8
RUNNING_UPDATES = 10
DEADLINE_S = 1_800
IDLE_LOAD = 0.5
"""Load average over the last minute, before the first trainer, above which the machine is not idle."""
TRAINING_TARGET, PROCESS_TARGET, REWARD_TARGET = 0.6, 0.9, 0.05
TRL = "TRL"
BUILD = Path("build/against_trl").absolute()
HERE = Path(__file__).parent
PARTS = 10
"""The table shows the curves at the ends of so many equal parts of the samples."""


class Point(NamedTuple):
    """The end of one update: seconds since the epoch, the mean reward of its samples, and how many there were."""

    time_s: float
    reward: float
    samples: int
    tokens: int


@dataclass(frozen=True)
class Place:
    """A place on a curve: the cost so far, and the running mean of the reward.

    Seconds count from the beginning of the training.
    """

    samples: int
    tokens: int
    training_s: float
    reward: float


@dataclass(frozen=True)
class Curve:
    """The course of a training. `started_s` and `began_s` are seconds since the epoch."""

    trainer: str
    started_s: float
    began_s: float
    points: Sequence[Point]

    @cached_property
    def places(self) -> Sequence[Place]:
        """The curve from the first update on at which there is a running mean."""
        found, samples, tokens = [], 0, 0
        for number, point in enumerate(self.points, 1):
            samples, tokens = samples + point.samples, tokens + point.tokens
            if number >= RUNNING_UPDATES:
                mean = fmean(one.reward for one in self.points[number - RUNNING_UPDATES : number])
                found.append(Place(samples, tokens, point.time_s - self.began_s, mean))
        return found


@dataclass(frozen=True)
class Row:
    """The figures of one training; times are in seconds. `reached`: the place of reward 0.8, None if there is none."""

    trainer: str
    first_update_s: float
    updates: int
    s_per_update: float
    last_reward: float
    reached: Place | None
    updates_needed: int | None
    process_s: float | None
    """Time from the start of the command to reward 0.8."""
    places: Sequence[Place]


def row_of(curve: Curve) -> Row:
    at = next((number for number, place in enumerate(curve.places) if place.reward >= REWARD), None)
    reached = None if at is None else curve.places[at]
    return Row(
        trainer=curve.trainer,
        first_update_s=curve.points[0].time_s - curve.started_s,
        updates=len(curve.points),
        s_per_update=(curve.points[-1].time_s - curve.began_s) / len(curve.points),
        last_reward=curve.places[-1].reward,
        reached=reached,
        updates_needed=None if at is None else at + RUNNING_UPDATES,
        process_s=None if reached is None else reached.training_s + curve.began_s - curve.started_s,
        places=curve.places,
    )


def with_echo_queue(s: int, base: Path, updates: int, workers: int) -> Curve:
    folder = BUILD / f"s{s}"
    settings = {
        "MODEL__BASE": base,
        "ROLLOUT__WORKERS": workers,
        "LEARNER__MAX_UPDATES": updates,
        "STALENESS__S": s,
        "STALENESS__KAPPA": 1,
    }
    started = time.time()
    quick_start("run", folder, settings)
    log = metrics.read(folder / "metrics.jsonl")
    points = [Point(update.time_s, update.reward_mean, update.samples, update.tokens) for update in log]
    return Curve(f"S = {s}", started, metrics.began_s(log[0]), points)


def with_trl(setting: Mapping[str, Any], deadline_s: float = DEADLINE_S) -> Curve:
    """Trains as `setting` says, and returns the curve; the model is in the folder `model` of its `output` then."""
    started = time.time()
    output = _run(
        [str(trl_python()), str(HERE / "with_trl" / "train.py"), json.dumps(setting)],
        os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(Path.cwd())},
        deadline_s,
    )
    result = json.loads(output.splitlines()[-1])
    return Curve(TRL, started, result["began_s"], [Point(*point) for point in result["curve"]])


def setting(config: Config, base: Path, updates: int, threads: int, output: Path) -> dict[str, Any]:
    """Returns the settings of TRL's half: the pipeline's hyper-parameters, its prompts and its rewards.

    `config`: its prompts are a reasoning-gym set, or made by code whose rewards are functions.
    """
    learner = config.learner.model_dump()
    shared = ("batch_groups", "lr", "warmup_updates", "betas", "weight_decay", "grad_clip")
    functions = [(reward.function, reward.weight) for reward in config.environment.reward_functions.values()]
    return {key: learner[key] for key in shared} | {
        "clip_low": config.learner.correction.clip_low,
        "clip_high": config.learner.correction.clip_high,
        "model": str(base),
        "output": str(output),
        "dataset": config.prompts.source.removeprefix(GENERATED),
        "options": config.prompts.options,
        **({"rewards": functions} if functions else {}),
        "group_size": config.rollout.group_size,
        "temperature": config.rollout.temperature,
        "max_new_tokens": config.model.max_new_tokens,
        "updates": updates,
        "threads": threads,
        "seed": config.run.seed,
    }


def trl_python() -> Path:
    """Returns the Python of TRL's own environment, which is made at the first call."""
    environment, wanted = Path("build/trl").absolute(), HERE / "with_trl" / "requirements.txt"
    python, marker = environment / "bin" / "python", environment / "installed.txt"
    if not marker.is_file() or marker.read_bytes() != wanted.read_bytes():
        print(f"installing TRL into {environment}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", str(environment)])
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        # torch is installed first and alone, so that no later package brings another build of it.
        _run([*pip, next(line for line in wanted.read_text().splitlines() if line.startswith("torch=="))])
        _run([*pip, "--requirement", str(wanted)])
        shutil.copy(wanted, marker)
    return python


def _run(command: Sequence[str], environ: dict[str, str] | None = None, deadline_s: float = DEADLINE_S) -> str:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=deadline_s, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command[:4])} … ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def targets(rows: Sequence[Row]) -> dict[str, bool]:
    """Returns the promises that these trainings can show, and whether they are kept. `rows`: TRL's first."""
    theirs, *ours = rows
    held = {
        f"{one.trainer}: at most {REWARD_TARGET} below TRL's reward after as many samples": (
            one.last_reward >= theirs.last_reward - REWARD_TARGET
        )
        for one in ours
    }
    if theirs.reached is not None and theirs.process_s is not None:
        last, until = ours[-1], f"{ours[-1].trainer}: reward {REWARD} in at most"
        held[f"{until} {TRAINING_TARGET} of TRL's time of training"] = (
            last.reached is not None and last.reached.training_s <= TRAINING_TARGET * theirs.reached.training_s
        )
        held[f"{until} {PROCESS_TARGET} of TRL's time of the whole process"] = (
            last.process_s is not None and last.process_s <= PROCESS_TARGET * theirs.process_s
        )
    return held


def summary(rows: Sequence[Row]) -> str:
    """Returns what each training took to reward 0.8, as a table."""
    head = ["trainer", f"updates to {REWARD}", "samples", "tokens", "training", "process", "first update", "per update"]
    return _table(head, [_needed(row) for row in rows])


def _needed(row: Row) -> tuple[str, ...]:
    always = (f"{row.first_update_s:.1f} s", f"{row.s_per_update:.3f} s")
    if row.reached is None:
        return (row.trainer, *["never"] * 5, *always)
    needed = (f"{row.updates_needed}", f"{row.reached.samples:,}", f"{row.reached.tokens:,}")
    return (row.trainer, *needed, f"{row.reached.training_s:.1f} s", f"{row.process_s:.1f} s", *always)


def courses(rows: Sequence[Row]) -> str:
    """Returns the curves at evenly spread numbers of samples: the reward, and the tokens and seconds until then."""
    least, most = max(row.places[0].samples for row in rows), min(row.places[-1].samples for row in rows)
    lines = []
    for part in range(PARTS + 1):
        samples = least + (most - least) * part // PARTS
        places = [next((place for place in row.places if place.samples >= samples), row.places[-1]) for row in rows]
        cells = (f"{place.reward:.2f} ({place.tokens:,}; {place.training_s:.1f} s)" for place in places)
        lines.append((f"{samples:,}", *cells))
    return _table(["samples", *(f"{row.trainer}: reward (tokens; seconds)" for row in rows)], lines)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draws the running mean of the reward against samples, tokens and seconds of training."""
    axes_of: Mapping[str, str] = {"samples": "samples", "tokens": "tokens", "training_s": "seconds of training"}
    figure, axes = plt.subplots(1, len(axes_of), figsize=(11, 3.4), layout="constrained", sharey=True)
    for axis, (name, label) in zip(axes, axes_of.items(), strict=True):
        for row in rows:
            style = "--" if row.trainer == TRL else "-"
            axis.plot(
                [getattr(at, name) for at in row.places], [at.reward for at in row.places], style, label=row.trainer
            )
        axis.axhline(REWARD, color="grey", linestyle=":", linewidth=1)
        axis.set(xlabel=label, xlim=(0, None), ylim=(0, 1))
    axes[0].set_ylabel(f"reward, mean of {RUNNING_UPDATES} updates")
    axes[-1].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--updates", type=int, default=0, help="updates of each trainer; 0: as many as the quick start's prompts give"
    )
    parser.add_argument("--bounds", default="0,1,8", help="the bounds S of ours")
    parser.add_argument("--workers", type=int, default=1, help="the rollout workers of ours, with a thread each")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--trl-threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = load(QUICK_START)
    updates = options.updates or config.prompts.options["size"] * config.prompts.epochs // config.learner.batch_groups
    if updates < RUNNING_UPDATES:
        parser.error(f"--updates {updates}: the running mean needs {RUNNING_UPDATES} or more")
    trl_python()
    shutil.rmtree(BUILD, ignore_errors=True)
    quick_start("init-model", BUILD / "base", {})
    base = BUILD / "base" / "base"
    if (load_average := os.getloadavg()[0]) > IDLE_LOAD:
        print(
            f"the machine is not idle (load {load_average:.1f}): times are not fair to TRL", file=sys.stderr, flush=True
        )
    trainers: dict[str, Callable[[], Curve]] = {
        TRL: lambda: with_trl(setting(config, base, updates, options.trl_threads, BUILD / "trl"))
    }
    for s in map(int, options.bounds.split(",")):
        trainers[f"S = {s}"] = partial(with_echo_queue, s, base, updates, options.workers)
    rows, found = Rows(), list[Row]()
    for trainer, train in trainers.items():
        with rows.row(trainer):
            found.append(row_of(train()))
            print(summary(found[-1:]).splitlines()[-1])
    if found:
        print("", summary(found), courses(found), sep="\n\n", flush=True)
    if options.plot:
        with rows.row("the plot"):
            plot(found, options.plot)
    return conclude(found, rows.promises or targets(found), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
