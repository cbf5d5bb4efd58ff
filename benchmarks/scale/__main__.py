"""What one Redis holds: waiting workers, the longest command, strictly on-policy updates, partial rollouts, memory.

    python -m benchmarks.scale [--json] [--only sweep,commands,strict,memory,partials] [--against CHECKOUT]

Each measurement is a process of its own (`herd`, `commands`, `strict`, `memory`, `benchmarks.partials`) with a server
of its own. With `--against`, each is repeated at once with the packages of another checkout of this project, so that
both see the same machine; its clients must have the same methods. `before.py` has the figures before the queue was
made to scale.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import IO, Any

import orjson

from benchmarks.laboratory import machine
from benchmarks.rows import Rows
from benchmarks.scale.before import BEFORE
from benchmarks.verdict import conclude

PARTS = ("sweep", "commands", "strict", "memory", "partials")
PACKAGES = ("echo_queue", "workers", "learner")
HERE = Path(__file__).resolve().parents[2]
WORKERS, RATES = (0, 128, 512, 2000), (50, 100, 200, 400)
GOAL = (2000, 100)
"""The point of the sweep that has targets."""
LOG_TAIL, DEADLINE_S = 2000, 1800.0
SHARE_MAX, P99_MAX_MS, LONGEST_MAX_MS, STRICT_MAX_S, BATCH = 0.35, 15.0, 10.0, 0.4, 1024


class MeasurementFailed(Exception):
    """A measurement without figures: how its process ended, with the end of its log."""


class Checkout:
    """Runs measurements of this checkout with the packages of the one at `path`, each for `deadline_s` at most."""

    def __init__(self, path: Path, folder: Path, deadline_s: float = DEADLINE_S) -> None:
        folder.mkdir()
        (folder / "benchmarks").symlink_to(HERE / "benchmarks")
        for package in PACKAGES:
            (folder / package).symlink_to(path.resolve() / package)
        self._folder, self._deadline_s = folder, deadline_s

    def measure(self, module: str, *words: object) -> Any:
        """Returns what the measurement prints. Raises `MeasurementFailed`."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
            code = self._run(module, words, out, log)
            out.seek(0)
            log.seek(0)
            printed, said = out.read().splitlines(), log.read()[-LOG_TAIL:].decode(errors="replace")
        with suppress(IndexError, orjson.JSONDecodeError):
            figures = orjson.loads(printed[-1])
            if code == 0 or (code == 1 and _misses(figures)):
                return figures
        how = f"was not done after {self._deadline_s:g} s" if code is None else f"ended with {code}"
        raise MeasurementFailed(f"{module} {how}, without figures to go by\n{said}".rstrip())

    def _run(self, module: str, words: Sequence[object], out: IO[bytes], log: IO[bytes]) -> int | None:
        """Returns the exit code, None at the deadline. The processes of the measurement end with it in any case."""
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        process = subprocess.Popen(
            (sys.executable, "-m", f"benchmarks.{module}", *map(str, words)),
            cwd=self._folder,
            env=os.environ | {"PYTHONPATH": str(self._folder), "TMPDIR": str(temporary)},
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
        try:
            return process.wait(self._deadline_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _misses(figures: Any) -> bool:
    """Says whether this is the verdict of a benchmark that has measured and missed a target, and so ends with 1."""
    return isinstance(figures, dict) and figures.get("ok") is False


def measure(checkouts: Mapping[str, Checkout], args: argparse.Namespace, rows: Rows) -> dict[str, dict[str, Any]]:
    """Returns the figures of each checkout by part, taken in turns."""
    figures: dict[str, dict[str, Any]] = {name: {} for name in checkouts}

    def each(part: str, key: str, module: str, *words: object) -> None:
        for name, checkout in checkouts.items():
            with rows.row(f"{name}: {part} {key}"):
                made = checkout.measure(module, *words)
                figures[name].setdefault(part, {})[key] = made
                print(f"{name}: {part} {key}: {orjson.dumps(made).decode()}")

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
    options.add_argument("--deadline", type=float, default=DEADLINE_S, help="seconds of a measurement at most")
    options.add_argument("--fsync", default="everysec", choices=("always", "everysec", "no"))
    options.add_argument("--tasks", type=int, default=100_000, help="tasks in flight for the longest commands")
    options.add_argument("--batches", type=numbers, default=(256, BATCH), help="groups per update at S = 0")
    return options


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    args = parser().parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        paths = {"this": HERE} | ({"against": args.against} if args.against else {})
        checkouts = {name: Checkout(path, Path(directory, name), args.deadline) for name, path in paths.items()}
        figures = measure(checkouts, args, rows := Rows())
    found = {"machine": machine.business(), **figures, "lost": rows.lost, "before": BEFORE}
    return conclude(found, rows.promises | targets_of(figures["this"]), as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
