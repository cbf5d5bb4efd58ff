"""Finds out in less than ten minutes what a GPU can do, what is right and what is fast on it, and makes a real run.

    python -m benchmarks.gpu --wheels wheels            # on a machine with a network: fetch what must travel
    python -m benchmarks.gpu --with wheels              # on the machine with the GPU, in a bare checkout
    python -m benchmarks.gpu --fake                     # all steps with tiny shapes, on a CPU as well

It needs Python 3.12 with torch 2.11 or newer, transformers, numpy and numba there, and neither network nor servers.
`--out` gets `rows.jsonl` and `log.txt`. Each row is on the disk as soon as it is known. A step that fails or hangs says
why, and the next one begins; the exit code is then 1. docs/gpu.md has the steps.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu import wheels
from benchmarks.gpu.runner import Runner, card
from benchmarks.gpu.steps import steps
from learner.allocator import grow_segments

ROOT = Path(__file__).parents[2]
SLOWER = 10.0
"""How much more time a CPU has that other work shares, with tiny shapes."""


def main() -> int:
    options, parser = _options()
    if options.wheels:
        return wheels.fetch(ROOT, options.wheels)
    here = card()
    if not (here.name or options.fake):
        parser.error("there is no GPU here: run it with --fake, or on a machine that has one")
    if options.packages and not [*options.packages.glob("*.whl")]:
        parser.error(f"--with: there are no wheels in {options.packages}; --wheels fetches them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a step ends with this process
    with tempfile.TemporaryDirectory() as site:
        environ = _with(options.packages, Path(site)) if options.packages else {**os.environ}
        grow_segments(environ)
        environ.setdefault("HF_HUB_OFFLINE", "1")
        environ["PYTHONDONTWRITEBYTECODE"] = ""  # some twenty processes import the same
        slower = SLOWER if options.fake else 1.0
        runner = Runner(options.out.absolute(), options.seconds * slower, environ, slower=slower)
        found = steps(runner.rows, here, fake=options.fake)
        if unknown := set(options.steps or ()) - {step.name for step in found}:
            parser.error(f"--steps: there is no {unknown.pop()!r}; there are {', '.join(step.name for step in found)}")
        failed = runner.run([step for step in found if not options.steps or step.name in options.steps])
    print(f"{runner.rows}: {len(failed)} steps failed" + "".join(f", {name}" for name in failed))
    return 1 if failed else 0


def _options() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="tiny shapes")
    parser.add_argument("--steps", nargs="+", metavar="STEP", help="these alone; default: all of them")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all steps together; default: 540")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="default: runs/gpu")
    parser.add_argument("--with", dest="packages", type=Path, metavar="FOLDER", help="use the wheels that lie there")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="fetch what must travel, and print its size")
    return parser.parse_args(), parser


def _with(folder: Path, site: Path) -> dict[str, str]:
    """Installs the wheels of `folder` into `site`; returns the environment of a process that finds them and us."""
    alone = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--quiet", "--target", str(site)]
    files = sorted(map(str, folder.glob("*.whl")))
    subprocess.run([sys.executable, "-m", "pip", "install", *alone, *files], check=True, timeout=300)
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
        "PATH": os.pathsep.join([str(site / "bin"), os.environ.get("PATH", os.defpath)]),
    }


if __name__ == "__main__":
    sys.exit(main())
