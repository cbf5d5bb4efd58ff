"""A quarter of an hour on a GPU leaves what was found, whatever becomes of single steps; here with tiny shapes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import runner, wheels
from benchmarks.gpu.runner import Card, Runner, Step, missing
from benchmarks.gpu.steps import OWN, steps
from tests.processes import is_running
from tests.source_code import ROOT
from tests.waiting import wait_until

NEXT = Step("next", ["-c", "print('as it should')"], 60)
HANGS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print("it holds the card")
open("told", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(1000)
"""


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def states(folder: Path) -> list[tuple[str, str]]:
    return [(row["step"], row["state"]) for row in rows(folder) if "step" in row]


def test_a_step_that_raises_leaves_its_name_and_its_reason_and_the_next_one_runs(tmp_path: Path) -> None:
    raises = Step("raises", ["-c", "raise RuntimeError('no kernel image')"], 60)
    assert Runner(tmp_path, 60, os.environ).run([raises, NEXT]) == ["raises"]
    assert states(tmp_path) == [("raises", "began"), ("raises", "failed"), ("next", "began"), ("next", "ok")]
    assert rows(tmp_path)[1]["why"] == "RuntimeError: no kernel image (exit code 1)"


def test_a_broken_promise_is_the_reason(tmp_path: Path) -> None:
    misses = Step("misses", ["-c", "print('ok   one\\nFAIL two\\nlast'); raise SystemExit(1)"], 60)
    Runner(tmp_path, 60, os.environ).run([misses])
    assert rows(tmp_path)[-1]["why"] == "FAIL two (exit code 1)"


def test_a_step_that_hangs_ends_with_all_that_it_started_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over as soon as it hangs; a child of it has a session of its own."""
    monkeypatch.chdir(tmp_path)
    told = tmp_path / "told"

    def wait(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
        if "1000" not in process.args[2]:  # type: ignore[index]
            return runner.until(process, timeout_s)
        wait_until(lambda: told.exists() and len(told.read_text().split()) == 2, "the step to hang")
        raise subprocess.TimeoutExpired(process.args, timeout_s)

    Runner(tmp_path, 60, os.environ, wait).run([Step("hangs", ["-c", HANGS], 50), NEXT])
    assert not any(is_running(int(pid)) for pid in told.read_text().split())
    assert states(tmp_path)[-3:] == [("hangs", "failed"), ("next", "began"), ("next", "ok")]
    assert rows(tmp_path)[1]["why"] == "it had not ended after 50 s"
    assert "it holds the card" in (tmp_path / "log.txt").read_text()


def test_killed_after_any_step_it_leaves_the_rows_before(tmp_path: Path) -> None:
    """The second step kills the runner."""
    program = f"""
import os
from pathlib import Path
from benchmarks.gpu.runner import Runner, Step
kills = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
steps = [Step("first", ["-c", "print(1)"], 60), Step("second", ["-c", kills], 60), Step("third", ["-c", ""], 60)]
Runner(Path({str(tmp_path)!r}), 60, os.environ).run(steps)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert states(tmp_path) == [("first", "began"), ("first", "ok"), ("second", "began")]


def test_a_step_without_room_or_time_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    short = [Step("disk", [], 60, disk_gb=1e6), Step("memory", [], 60, host_gb=1e6), NEXT]
    assert Runner(tmp_path, 60, os.environ).run(short) == []
    assert [(row["step"], row["state"]) for row in rows(tmp_path)][:3] == [
        ("disk", "skipped"), ("memory", "skipped"), ("next", "began"),
    ]  # fmt: skip
    assert rows(tmp_path)[0]["why"].startswith("it needs 1000000 GB on the disk of")
    assert "of the GPU's memory" in missing(Step("card", [], 60, gpu_gb=1e6), 60)
    assert missing(NEXT, 1.0) == "no time is left: 1 s"


def test_first_what_the_card_can_do_then_what_is_right_then_what_is_fast_then_a_run() -> None:
    h100, h200 = Card("NVIDIA H100", 85.5, 85.0), Card("NVIDIA H200", 150.7, 150.0)
    found = steps(Path("rows"), h100, fake=False)
    assert [step.name for step in found] == [
        "machine", "ceilings", "right", "small", "beside", "large", "compiled", "run", "bits", "long", "layers",
    ]  # fmt: skip
    large = {card.name: steps(Path("rows"), card, fake=False)[5] for card in (h100, h200)}
    assert "4B" in large["NVIDIA H100"].command and large["NVIDIA H100"].gpu_gb < h100.free_gb
    assert "8B" in large["NVIDIA H200"].command and "8192" in large["NVIDIA H200"].command


def test_what_travels_is_pinned_and_botocore_is_left_s3_alone(tmp_path: Path) -> None:
    pinned = dict(wheels._pins(ROOT / "constraints.txt"))
    assert {name.lower() for name in wheels.PACKAGES} <= set(pinned)
    assert wheels._stays("botocore/data/s3/2006-03-01/service-2.json.gz") and wheels._stays("botocore/session.py")
    assert not wheels._stays("botocore/data/ec2/2016-11-15/service-2.json.gz")
    assert 0 < wheels.checkout_bytes(ROOT) < 20 * wheels.MIB


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(["machine"], marks=pytest.mark.slow, id="one"),
        pytest.param([], marks=pytest.mark.proof(kind="benchmarks", share=0.15), id="all"),
    ],
)
@pytest.mark.timeout(1_800)
def test_steps_run_with_tiny_shapes(tmp_path: Path, chosen: list[str]) -> None:
    only = ["--steps", *chosen] if chosen else []
    command = [sys.executable, "-m", "benchmarks.gpu", "--fake", "--out", str(tmp_path), *only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_790, check=False)
    assert done.returncode == 0, done.stdout[-2_000:]
    ended = {row["step"]: row["state"] for row in rows(tmp_path) if row.get("state") != "began" and "step" in row}
    named = chosen or [step.name for step in steps(Path("rows"), Card(), fake=True)]
    assert ended == dict.fromkeys(named, "ok") and [*ended] == named
    known = {row.get("of", row.get("way")) for row in rows(tmp_path) if "step" not in row}
    assert known >= {*(chosen or [*OWN, "ours"])}, "each has left its rows"
