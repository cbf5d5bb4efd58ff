"""What one Redis holds: waiting workers, the longest command, strictly on-policy updates, partial rollouts, memory.

    python -m benchmarks.scale [--json] [--only sweep,commands,strict,memory,partials] [--against CHECKOUT]

Each measurement is a process of its own (`herd`, `commands`, `strict`, `memory`, `benchmarks.partials`) with a server
of its own. With `--against`, each is repeated at once with the packages of another checkout of this project, so that
both see the same machine. `before.py` has the figures before the queue was made to scale.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import orjson

from benchmarks.laboratory import machine
from benchmarks.scale.before import BEFORE
from benchmarks.verdict import conclude

PARTS = ("sweep", "commands", "strict", "memory", "partials")
PACKAGES = ("echo_queue", "workers", "learner")
HERE = Path(__file__).resolve().parents[2]
WORKERS, RATES = (0, 128, 512, 2000), (50, 100, 200, 400)
GOAL = (2000, 100)
"""The point of the sweep that has targets."""
SHARE_MAX, P99_MAX_MS, LONGEST_MAX_MS, STRICT_MAX_S, BATCH = 0.35, 15.0, 10.0, 0.4, 1024


class Checkout:
    """Runs measurements of this checkout with the packages of the one at `path`."""

    def __init__(self, path: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "benchmarks").symlink_to(HERE / "benchmarks")
        for package in PACKAGES:
            (folder / package).symlink_to(path.resolve() / package)
        self._folder = folder

    def measure(self, module: str, *words: object) -> Any:
        """Returns what the measurement prints; the error's last line if it fails."""
        line = (sys.executable, "-m", f"benchmarks.{module}", *map(str, words))
        done = subprocess.run(
            line, cwd=self._folder, env=os.environ | {"PYTHONPATH": str(self._folder)}, capture_output=True, check=False
        )
        printed = done.stdout.splitlines()
        if not printed:
            raise SystemExit(f"{module} {' '.join(map(str, words))} failed:\n{done.stderr.decode()}")
        return orjson.loads(printed[-1])


def measure(checkouts: Mapping[str, Checkout], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the figures of each checkout by part, taken in turns."""
    figures: dict[str, dict[str, Any]] = {name: {} for name in checkouts}

    def each(part: str, key: str, module: str, *words: object) -> None:
        for name, checkout in checkouts.items():
            figures[name].setdefault(part, {})[key] = checkout.measure(module, *words)
            print(f"{name}: {part} {key}: {orjson.dumps(figures[name][part][key]).decode()}", flush=True)

    if "sweep" in args.only:
        for workers, rate in product(args.workers, args.rates):
            words = ("--workers", workers, "--rate", rate, "--seconds", args.seconds, "--fsync", args.fsync)
            each("sweep", f"{workers} × {rate}", "scale.herd", *words, "--quiet")
        words = ("--workers", args.workers[-1], "--rate", GOAL[1], "--seconds", args.seconds, "--fsync", args.fsync)
        each("whole_workers", f"{args.workers[-1]} × {GOAL[1]}", "scale.herd", *words)
    if "commands" in args.only:
        size = "--tasks", args.tasks, "--workers", args.workers[-1]
        each("commands", f"{args.tasks} in flight", "scale.commands", *size)
    if "strict" in args.only:
        for batch in args.batches:
            each("strict", str(batch), "scale.strict", "--batch", batch)
    if "memory" in args.only:
        each("memory", "bytes", "scale.memory")
    if "partials" in args.only:
        each("partials", "512 × 8", "partials", "--json")
    return figures


def targets_of(figures: Mapping[str, Any]) -> dict[str, bool]:
    """Returns what the queue promises, promise → kept, as far as it was measured."""
    targets = {}
    if point := figures.get("sweep", {}).get(f"{GOAL[0]} × {GOAL[1]}"):
        where = f"{GOAL[0]} workers, {GOAL[1]} groups/s"
        targets[f"{where}: the server's main thread takes at most {SHARE_MAX} of a core"] = (
            point["server_share"] <= SHARE_MAX and point["got"] >= 0.95 * GOAL[1]
        )
        targets[f"{where}: 99 % of completions take at most {P99_MAX_MS} ms"] = point["complete_p99_ms"] <= P99_MAX_MS
    for where, moves in figures.get("commands", {}).items():
        for name, spent in moves.items():
            targets[f"{where}: no step of {name} takes more than {LONGEST_MAX_MS} ms"] = (
                spent["longest_ms"] <= LONGEST_MAX_MS
            )
    if strict := figures.get("strict", {}).get(str(BATCH)):
        targets[f"S = 0, B = {BATCH}: at most {STRICT_MAX_S} s of the server for an update"] = (
            strict["server_s"] <= STRICT_MAX_S
        )
    for where, partials in figures.get("partials", {}).items():
        targets |= {f"partial rollouts, {where}: {promise}": kept for promise, kept in partials["targets"].items()}
    return targets


def parser() -> argparse.ArgumentParser:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--json", action="store_true", help="end with one JSON document")
    options.add_argument("--only", type=lambda text: text.split(","), default=PARTS, help=f"of {','.join(PARTS)}")
    options.add_argument("--against", type=Path, help="another checkout, measured in turns with this one")
    options.add_argument("--workers", type=numbers, default=WORKERS, help="numbers of waiting workers of the sweep")
    options.add_argument("--rates", type=numbers, default=RATES, help="groups per second of the sweep")
    options.add_argument("--seconds", type=float, default=10.0, help="length of each point of the sweep")
    options.add_argument("--fsync", default="everysec", choices=("always", "everysec", "no"))
    options.add_argument("--tasks", type=int, default=100_000, help="tasks in flight for the longest commands")
    options.add_argument("--batches", type=numbers, default=(256, BATCH), help="groups per update at S = 0")
    return options


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    args = parser().parse_args()
    with tempfile.TemporaryDirectory() as directory:
        paths = {"this": HERE} | ({"against": args.against} if args.against else {})
        checkouts = {name: Checkout(path, Path(directory, name)) for name, path in paths.items()}
        figures = measure(checkouts, args)
    found = {"machine": machine.business(), **figures, "before": BEFORE}
    return conclude(found, targets_of(figures["this"]), as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
