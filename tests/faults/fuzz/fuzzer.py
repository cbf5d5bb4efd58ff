"""Fuzzes every decoder of foreign bytes (`decoders.py`) with atheris, guided by coverage.

    python -m tests.faults.fuzz.fuzzer --seconds 600            all targets, the time shared among them
    python -m tests.faults.fuzz.fuzzer --seconds 60 --target group
    python -m tests.faults.fuzz.fuzzer --minimise               the smallest inputs with all the coverage found

- A finding is an exception that the decoder does not declare, a broken round trip, an input that takes longer than
  `INPUT_LIMIT_S`, or a process that grows beyond `MEMORY_LIMIT_MB`: exit code 1, and the input is kept in build/fuzz.
- How many inputs were run is added, target by target, to docs/fuzzing.json; nothing else writes there.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[3]
CORPUS = Path(__file__).parent / "corpus"
WORK = ROOT / "build" / "fuzz"
RESULTS = ROOT / "docs" / "fuzzing.json"
INPUT_MAX_BYTES = 4096
INPUT_LIMIT_S = 5
MEMORY_LIMIT_MB = 2048
GRACE_S = 120
"""Seconds for the start of a target's process, and for its end."""
PACKAGES = ("echo_queue", "learner", "workers")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--target", action="append", help="one of the targets; default: all")
    parser.add_argument("--minimise", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="do not add to docs/fuzzing.json")
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        fuzz_one(*arguments.child)
    names = arguments.target or target_names()
    if arguments.minimise:
        for name in names:
            minimise(name)
        return 0
    findings = [name for name in names if not run(name, max(1, arguments.seconds // len(names)), not arguments.quiet)]
    for name in findings:
        print(f"FOUND: {name}; the input is in {WORK / name / 'findings'}")
    return 1 if findings else 0


def target_names() -> list[str]:
    from tests.faults.fuzz.decoders import DECODERS

    return list(DECODERS)


def run(name: str, seconds: int, record: bool) -> bool:
    """Fuzzes one target in a process of its own. False if there was a finding."""
    found, findings = WORK / name / "corpus", WORK / name / "findings"
    for folder in (found, findings, CORPUS / name):
        folder.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": seconds,
        "timeout": INPUT_LIMIT_S,
        "rss_limit_mb": MEMORY_LIMIT_MB,
        "max_len": INPUT_MAX_BYTES,
        "print_final_stats": 1,
        "artifact_prefix": f"{findings}/",
        "dict": _dictionary(name),
    }
    flags = [f"-{option}={value}" for option, value in options.items()]
    command = [
        sys.executable,
        "-m",
        "tests.faults.fuzz.fuzzer",
        "--child",
        name,
        *flags,
        str(found),
        str(CORPUS / name),
    ]
    log = WORK / name / "log"
    began = time.monotonic()
    with log.open("wb") as output:
        ended = subprocess.run(command, cwd=ROOT, stderr=output, stdout=output, timeout=seconds + GRACE_S, check=False)
    said = log.read_text(errors="replace")
    executed = [int(count) for count in re.findall(r"stat::number_of_executed_units:\s*(\d+)", said)]
    inputs = sum(executed)
    print(
        f"{name:12} {inputs:12,} inputs in {time.monotonic() - began:6.1f} s, exit code {ended.returncode}", flush=True
    )
    if ended.returncode != 0:
        print(said[said.find("=== Uncaught") :][-3000:])
    elif not executed:
        raise RuntimeError(f"{log} does not say how many inputs were run")
    if record:
        _record(name, inputs, time.monotonic() - began)
    return ended.returncode == 0


def fuzz_one(name: str, *flags: str) -> None:
    """Target's process: fuzzes, and never returns."""
    import atheris

    os.environ["NUMBA_DISABLE_JIT"] = "1"  # so that compiled loops are followed as well, and numpy checks their bounds
    with atheris.instrument_imports(include=list(PACKAGES)):
        from tests.faults.fuzz.decoders import DECODERS
    decoder = DECODERS[name]
    for seed in decoder.seeds():
        decoder.take(seed)
    atheris.Setup([name, *flags], decoder.take)
    atheris.Fuzz()


def minimise(name: str) -> None:
    """Replaces the committed corpus of a target: smallest inputs first, each kept if it reaches a line or branch that
    none before it did."""
    from tests.faults.fuzz.decoders import DECODERS

    decoder = DECODERS[name]
    folders = (WORK / name / "corpus", CORPUS / name)
    found = {path.read_bytes() for folder in folders if folder.exists() for path in folder.iterdir()}
    kept, reached = [], set[tuple[str, int, int]]()
    decoder.take(b"")  # what is done once, at first use, is no coverage
    for data in sorted(found | set(decoder.seeds()), key=lambda data: (len(data), data)):
        steps = _steps(decoder.take, data)
        if not steps <= reached:
            kept.append(data)
            reached |= steps
    shutil.rmtree(CORPUS / name, ignore_errors=True)
    (CORPUS / name).mkdir(parents=True)
    for data in kept:
        (CORPUS / name / sha1(data, usedforsecurity=False).hexdigest()[:12]).write_bytes(data)
    print(f"{name:12} {len(kept)} of {len(found)} inputs kept, {sum(map(len, kept)):,} bytes")


def replay() -> Iterator[tuple[str, Path]]:
    """Every input of the committed corpus, with its target."""
    for folder in sorted(CORPUS.iterdir()):
        for path in sorted(folder.iterdir()):
            yield folder.name, path


def _steps(take: Any, data: bytes) -> set[tuple[str, int, int]]:
    """Returns the transitions from line to line of our packages that one input causes."""
    steps: set[tuple[str, int, int]] = set()
    roots = tuple(f"{ROOT / package}{os.sep}" for package in PACKAGES)

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(roots):
            return None
        last = frame.f_lineno

        def step(inner: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            steps.add((inner.f_code.co_filename, last, inner.f_lineno))
            last = inner.f_lineno
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        take(data)
    finally:
        sys.settrace(before)
    return steps


def _dictionary(name: str) -> Path:
    """The target's words in libFuzzer's spelling."""
    from tests.faults.fuzz.decoders import DECODERS

    path = WORK / name / "words"
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in DECODERS[name].words]
    path.write_text("\n".join(lines) + "\n")
    seeds = CORPUS / name
    for seed in DECODERS[name].seeds():
        if not any(seeds.iterdir()):
            (WORK / name / "corpus" / sha1(seed, usedforsecurity=False).hexdigest()[:12]).write_bytes(seed)
    return path


def _record(name: str, inputs: int, seconds: float) -> None:
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"targets": {}}
    before = results["targets"].get(name, {"inputs": 0, "seconds": 0})
    results["targets"][name] = {"inputs": before["inputs"] + inputs, "seconds": round(before["seconds"] + seconds)}
    results["inputs"] = sum(target["inputs"] for target in results["targets"].values())
    results["targets"] = dict(sorted(results["targets"].items()))
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
