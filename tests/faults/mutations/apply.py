"""Breaks the product, one rule at a time, in a copy of it, and shows that the tests notice.

    python -m tests.faults.mutations.apply [--list] [WORD ...]

- First the tests run on a copy in which nothing is broken: there they must pass, or what they say later means nothing.
- Prints each mutation and the test that failed on it; ends with 1 if any survived. Words choose mutations by name.
- Caught is what makes a test that it names fail by what that test asserts. Code that does not load, a fixture that
  fails, a test that took too long: none of these tells that the broken rule was noticed.
- The copy holds what git knows, as it stands in the working tree; the tests run against it and nothing else. Beside it
  lie the loops that numba has compiled: it compiles again those of a source that has changed since.
- `--list` prints the rules, what breaking each endangers, and the tests that notice.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests import tiers
from tests.faults.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[3]
AT_ONCE = 4
DEADLINE_S, CONTROL_DEADLINE_S = 420, 2_400
LOADS = """
import sys; from pathlib import Path; from echo_queue.queue import library
from echo_queue.launch.servers.redis_server import RedisServer
server = RedisServer(Path(sys.argv[1]), None)
server.start()
try: library.load(server.client())
finally: server.stop()
"""
FAILED = re.compile(r"^(FAILED|ERROR) (\S+::\w+)(?:\[.*?\])?(?: - (.*))?$", re.MULTILINE)
TOO_SLOW = "Failed: Timeout"
IMPORTS = "import echo_queue, learner, workers; print(*(m.__path__[0] for m in (echo_queue, learner, workers)))"


@dataclass(frozen=True)
class Verdict:
    """`noticed`: the test that failed; empty if none did as it should, and then `said` tells how that came."""

    mutation: Mutation
    noticed: str
    said: str
    took_s: float


def control(mutations: Sequence[Mutation]) -> str:
    """Runs the mutations' tests where nothing is broken; returns what is wrong with them, empty if they pass."""
    with tempfile.TemporaryDirectory(prefix="control-", ignore_cleanup_errors=True) as scratch:
        copy = Path(scratch) / "project"
        copy_project(copy)
        environment = _environment(copy)
        check_imports(copy, environment)
        tests = sorted({test for mutation in mutations for test in mutation.caught_by})
        passed, said = _run(tests, copy, environment, CONTROL_DEADLINE_S)
        return "" if passed else _end(said)


def try_out(mutation: Mutation) -> Verdict:
    """Runs the mutation's tests on a copy in which the rule is broken. Raises `ValueError` if there is no such rule."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as scratch:
        copy = Path(scratch) / "project"
        copy_project(copy)
        path = copy / mutation.file
        path.write_text(mutation.apply(path.read_text()))
        environment = _environment(copy)
        noticed, said = "", _unloadable(path, copy, environment)
        if not said:
            check_imports(copy, environment)
            _, said = _run(mutation.caught_by, copy, environment, DEADLINE_S)
            noticed = noticed_by(said, mutation)
    return Verdict(mutation, noticed, _end(said), time.monotonic() - began)


def noticed_by(said: str, mutation: Mutation) -> str:
    """The test of the mutation that failed by what it asserts, by what pytest said; empty if none did."""
    for outcome, test, why in FAILED.findall(said):
        if outcome == "FAILED" and test in mutation.caught_by and not why.startswith(TOO_SLOW):
            return str(test)
        return ""  # with -x, the first is the one that ended the run
    return ""


def _end(said: str) -> str:
    """Enough to see why; pytest's summary alone may have any length where `CI` is set."""
    return "\n".join(said.splitlines()[-15:])


def _environment(copy: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(copy.parent), "COLUMNS": "240"}
    return {name: value for name, value in os.environ.items() if name != tiers.VARIABLE} | own


def _run(tests: Sequence[str], copy: Path, environment: Mapping[str, str], deadline_s: float) -> tuple[bool, str]:
    """Runs the tests; returns whether they passed, and what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-rfE", "-p", "no:cacheprovider"]
    command += [f"--basetemp={copy.parent}/pytest", "-m", "not proof", *tests]
    try:
        run = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"no verdict within {deadline_s} s"
    return run.returncode == 0, run.stdout + run.stderr


def _unloadable(path: Path, copy: Path, environment: Mapping[str, str]) -> str:
    """Returns why the broken file is no program at all; empty if it is one."""
    commands = {".lua": ["-c", LOADS, str(copy.parent / "redis")], ".py": ["-m", "py_compile", str(path)]}
    if path.suffix not in commands:
        return ""
    command = [sys.executable, *commands[path.suffix]]
    run = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    return f"does not load: {run.stderr[-500:]}" if run.returncode else ""


def copy_project(to: Path) -> None:
    """Copies the files that git tracks, and new ones that it does not ignore, as they stand."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    for compiled in (ROOT / "echo_queue").glob("**/__pycache__/*.nb[ic]"):
        place = to / compiled.relative_to(ROOT)
        place.parent.mkdir(exist_ok=True)
        shutil.copy2(compiled, place)


def check_imports(copy: Path, environment: dict[str, str]) -> None:
    """An installed project must not stand in for the copy."""
    found = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=copy, env=environment, capture_output=True, text=True, check=True
    )
    strangers = [path for path in found.stdout.split() if not Path(path).is_relative_to(copy)]
    if strangers:
        raise RuntimeError(f"the tests would run against {', '.join(strangers)}, not against the copy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutations whose name has one of them")
    parser.add_argument("--list", action="store_true", help="print the rules, and break none")
    args = parser.parse_args()
    chosen = [one for one in MUTATIONS if not args.words or any(word in one.name for word in args.words)]
    if args.list:
        for one in chosen:
            print(f"{one.name}\n    endangers: {one.danger}\n    caught by: {', '.join(one.caught_by)}")
        return 0
    for mutation in MUTATIONS:
        mutation.apply((ROOT / mutation.file).read_text())
    began = time.monotonic()
    if wrong := control(chosen):
        print(f"the tests fail where nothing is broken:\n{wrong}")
        return 1
    print(f"control: the tests pass where nothing is broken ({time.monotonic() - began:.0f} s)", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(_tell, chosen))
    survived = [verdict for verdict in verdicts if not verdict.noticed]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught in {time.monotonic() - began:.0f} s")
    return 1 if survived or not chosen else 0


def _tell(mutation: Mutation) -> Verdict:
    verdict = try_out(mutation)
    outcome = f"caught by {verdict.noticed}" if verdict.noticed else f"SURVIVED\n{verdict.said}"
    print(f"{mutation.name} ({verdict.took_s:.0f} s): {outcome}", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
