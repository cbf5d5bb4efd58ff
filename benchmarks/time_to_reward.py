"""Time to reward 0.8: this pipeline against TRL's `GRPOTrainer`, one after the other on this machine.

    python -m benchmarks.time_to_reward [--config configs/quickstart.toml] [--updates 0] [--rounds 1] [--json]

Both train the same base model on the same prompts in the same order, with the same number of samples, the same loss,
learning rate and scorer. The reward is that of the sampled groups, a running mean over 10 updates. *training* counts
from the moment at which the trainer begins to wait for the first update's samples; *process* counts from the start of
the command, imports and services included, and so does *first update*, until that has been made. Making the base model
and installing TRL counts for none of them. TRL has an environment of its own under build/, with the settings in
`benchmarks/with_trl/train.py`.

Only an idle machine gives a fair ratio: TRL's threads wait for one another, so other work slows it far more.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.verdict import print_verdict
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.reporting import metrics
from echo_queue.submission.sources.source import GENERATED

REWARD = 0.8
RUNNING_UPDATES = 10
DEADLINE_S = 1_800
IDLE_LOAD = 0.5
"""Load average over the last minute, before the first round, above which the machine is not idle."""
TARGET = 0.6
BUILD = Path("build/time_to_reward").absolute()
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Curve:
    """The course of a training, in seconds since the epoch. `points`: (end of update, mean reward of its samples)."""

    started_s: float
    began_s: float
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Times:
    """Seconds. `first_update_s`: from the start of the command to the end of the first update. `training_s` and
    `process_s`: until the running mean of the reward was 0.8; None: never."""

    first_update_s: float
    training_s: float | None
    process_s: float | None
    updates_needed: int | None
    updates: int
    s_per_update: float
    last_reward: float


def times(curve: Curve) -> Times:
    rewards = [reward for _, reward in curve.points]
    running = [fmean(rewards[i - RUNNING_UPDATES : i]) for i in range(RUNNING_UPDATES, len(rewards) + 1)]
    needed = next((i + RUNNING_UPDATES for i, mean in enumerate(running) if mean >= REWARD), None)
    reached = None if needed is None else curve.points[needed - 1][0]
    return Times(
        first_update_s=curve.points[0][0] - curve.started_s,
        training_s=None if reached is None else reached - curve.began_s,
        process_s=None if reached is None else reached - curve.started_s,
        updates_needed=needed,
        updates=len(rewards),
        s_per_update=(curve.points[-1][0] - curve.began_s) / len(rewards),
        last_reward=fmean(rewards[-RUNNING_UPDATES:]),
    )


def with_echo_queue(path: Path, base: Path, updates: int) -> Curve:
    folder = BUILD / "echo-queue"
    shutil.rmtree(folder, ignore_errors=True)
    overrides = {
        "ECHO_QUEUE_RUN__DIR": str(folder),
        "ECHO_QUEUE_MODEL__BASE": str(base),
        "ECHO_QUEUE_LEARNER__MAX_UPDATES": str(updates),
    }
    started = time.time()
    _run([sys.executable, "-m", "echo_queue.cli", "run", str(path)], os.environ | overrides)
    log = metrics.read(folder / "metrics.jsonl")
    return Curve(started, metrics.began_s(log[0]), [(update.time_s, update.reward_mean) for update in log])


def with_trl(config: Config, base: Path, updates: int, threads: int) -> Curve:
    started = time.time()
    output = _run(
        [str(_trl_python()), str(HERE / "with_trl" / "train.py"), json.dumps(setting(config, base, updates, threads))],
        os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    result = json.loads(output.splitlines()[-1])
    return Curve(started, result["began_s"], [(at, reward) for at, reward in result["curve"]])


def setting(config: Config, base: Path, updates: int, threads: int) -> dict[str, Any]:
    """Returns the settings of TRL's half: the hyper-parameters of the pipeline's configuration."""
    learner = config.learner.model_dump()
    shared = ("batch_groups", "lr", "betas", "weight_decay", "grad_clip")
    return {key: learner[key] for key in shared} | {
        "clip_low": config.learner.correction.clip_low,
        "clip_high": config.learner.correction.clip_high,
        "model": str(base),
        "output": str(BUILD / "trl"),
        "dataset": config.prompts.source.removeprefix(GENERATED),
        "options": config.prompts.options,
        "group_size": config.rollout.group_size,
        "temperature": config.rollout.temperature,
        "max_new_tokens": config.model.max_new_tokens,
        "updates": updates,
        "threads": threads,
        "seed": config.run.seed,
    }


def _trl_python() -> Path:
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


def _base_model(path: Path) -> Path:
    """Returns the configuration's base model, which is made if it does not exist yet."""
    config = load(path)
    if config.model.base != "init":
        return Path(config.model.base).absolute()
    folder = BUILD / "base-run"
    _run([sys.executable, "-m", "learner.base_model", str(path)], os.environ | {"ECHO_QUEUE_RUN__DIR": str(folder)})
    return folder / "base"


def _run(command: Sequence[str], environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command[:4])} … ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/quickstart.toml"))
    parser.add_argument(
        "--updates", type=int, default=0, help="updates of each trainer; 0: as many as the config's prompts give"
    )
    parser.add_argument("--rounds", type=int, default=1, help="repeats both, in turn; prints each round")
    parser.add_argument("--trl-threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = load(options.config)
    updates = options.updates or config.prompts.options["size"] * config.prompts.epochs // config.learner.batch_groups
    _trl_python()
    base = _base_model(options.config)
    if (load_average := os.getloadavg()[0]) > IDLE_LOAD:
        print(
            f"the machine is not idle (load {load_average:.1f}): the ratio will flatter us", file=sys.stderr, flush=True
        )
    for _ in range(options.rounds):
        theirs = times(with_trl(config, base, updates, options.trl_threads))
        ours = times(with_echo_queue(options.config, base, updates))
        _report(ours, theirs, options.json)


def _report(ours: Times, theirs: Times, as_json: bool) -> None:
    training, process = _ratio(ours.training_s, theirs.training_s), _ratio(ours.process_s, theirs.process_s)
    if as_json:
        both = {"echo_queue": ours, "trl": theirs, "ratio": {"training": training, "process": process}}
        kept = training is not None and training <= TARGET
        print_verdict(both, {f"training in at most {TARGET} of TRL's time": kept})
        return
    for name, found in (("TRL 1.16 GRPOTrainer", theirs), ("echo-queue", ours)):
        print(
            f"{name:<21} reward {REWARD} after {_seconds(found.training_s)} of training, "
            f"{_seconds(found.process_s)} of the process, {found.updates_needed} updates; "
            f"first update after {found.first_update_s:.1f} s, "
            f"{found.s_per_update:.3f} s per update, reward {found.last_reward:.2f} after {found.updates}"
        )
    print(f"ratio: {_share(training)} training, {_share(process)} whole process (target {TARGET})", flush=True)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
