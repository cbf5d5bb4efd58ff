"""The command: a storm of poisoned prompts, its report, and an exit code."""

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.faults.poison.storm import PoisonStorm

KINDS = ("function", "interactive")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.faults.poison", description="Trains a run of poisoned prompts.")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--duration", type=float, default=300.0, help="seconds in which prompts are submitted")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a storm that was withstood too")
    arguments = parser.parse_args()
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    directory = Path(tempfile.mkdtemp(prefix=f"poison-{seed}-"))
    print(f"poison for {arguments.duration:.0f} s, seed {seed}, in {directory}", flush=True)
    ok = True
    for kind in KINDS:
        verdict = PoisonStorm(directory / kind, seed, kind).run(arguments.duration / len(KINDS))
        print(verdict, flush=True)
        ok = ok and not verdict.faults
    if ok and not arguments.keep:
        shutil.rmtree(directory)
    print("every promise was kept" if ok else f"NOT WITHSTOOD: repeat with --seed {seed}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
