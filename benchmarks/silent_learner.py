"""What a learner that is stopped for good costs: when what waits for it is dismissed, by each way to start workers.

    python -m benchmarks.silent_learner [--day-only] [--json]

- *A day* on a virtual clock: eight machines of one pool, whose learner dies after an hour. The controller's rows are
  its real decisions, in the simulated cloud of `tests/fleet/simulated.py`; the others follow the worker's rule, with
  the defaults. `before`: a controller that holds for ever, a group that starts its workers again and again, and
  workers that gave up after `queue.stall_deadline_s`.
- *Live*, in seconds: a real Valkey and store, a real learner that is killed, the command `echo-queue fleet` with the
  driver `local`, and `infra/workers.sh`, which Slurm and SkyPilot run. One more worker is left alone beside them.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.rows import Rows
from benchmarks.verdict import conclude
from echo_queue.config import Config, toml_text
from echo_queue.errors import IDLE
from echo_queue.file_lock import is_locked
from echo_queue.fleet.state import Limits
from tests.fleet.fleet_harness import tables_of
from tests.fleet.simulated import Pool, SimulatedFleet
from tests.source_code import ROOT
from tests.waiting import wait_until
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness
from workers.leaser import LOOK_S

HOUR_S = 3_600.0
ALIVE_S, DAY_S = HOUR_S, 24 * HOUR_S
"""The learner lives for so long, and for so long afterwards it is seen what its machines cost."""
MACHINES, USD = 8, 0.45
GROUP_S, ENDING_S = 120.0, 60.0
"""From the learner's death until its workers have generated what they may, and from a dismissal to a machine's end."""
LEAST_SAVING = 0.98
IDLE_S = 8.0
PATIENT_S = 3_600.0
STALL_S = 30.0
LIVE_DEADLINE_S = 240.0
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(4_000)]


@dataclass(frozen=True)
class Row:
    """A way to start workers. `dismissed_s`: from the learner's death to the end of the last machine; None: none ends.

    `usd`, `alone_usd`: of that day, with what ends machines now, and with what did before.
    """

    way: str
    how: str
    dismissed_s: float | None
    usd: float
    alone_usd: float

    @property
    def saving(self) -> float:
        return 1 - self.usd / self.alone_usd


@dataclass(frozen=True)
class Live:
    """Seconds from the kill of the learner to the end of what waited; `left_alone`: a patient worker still does.

    `why`: what the controller says of itself in Redis.
    """

    controller_s: float
    workers_s: float
    workers_code: int
    left_alone: bool
    why: str


# A day ----------------------------------------------------------------------------------------------------------------


def controlled(stall_s: float) -> tuple[float | None, float]:
    """Plays a day of the controller; returns when the last machine ended, and what they cost after the death."""
    pool = Pool("l4", USD, 1.0, MACHINES, 300.0)
    fleet = SimulatedFleet({"l4": pool}, MACHINES / 1.1, Limits(machines=MACHINES, stall_s=stall_s))
    fleet.silent_from_s = ALIVE_S
    fleet.run(ALIVE_S)
    before_usd, dismissed_s = fleet.spent_usd, None
    assert sum(fleet.counts.values()) == MACHINES, "the learner needs all of them"
    while fleet.now_s < ALIVE_S + DAY_S:
        fleet.run(60.0)
        if dismissed_s is None and not fleet.machines:
            dismissed_s = fleet.now_s - ALIVE_S
    return dismissed_s, fleet.spent_usd - before_usd


def by_worker(deadline_s: float) -> float:
    """Returns when a machine ends whose workers give up after this deadline."""
    return GROUP_S + deadline_s + LOOK_S + ENDING_S


def a_day() -> Iterator[Row]:
    defaults = Config.model_validate({"run": {"name": "day", "dir": "day"}})
    idle_s, before_s = by_worker(defaults.rollout.idle_deadline_s), by_worker(defaults.queue.stall_deadline_s)
    for_ever = cost(DAY_S)
    held, alone_usd = controlled(float("inf"))
    assert held is None
    dismissed_s, usd = controlled(Limits().stall_s)
    yield Row("echo-queue fleet", "the controller dismisses", dismissed_s, usd, alone_usd)
    yield Row("Terraform, AWS and GCP", "machines leave their group", idle_s, cost(idle_s), for_ever)
    yield Row("Helm with its controller", "the controller dismisses", dismissed_s, usd, alone_usd)
    yield Row("Helm without it", "pods start again, nodes stay", None, for_ever, for_ever)
    yield Row("SkyPilot, Slurm", "the job ends", idle_s, cost(idle_s), cost(before_s))
    yield Row("join; sudo poweroff", "the command ends, and the machine", idle_s, cost(idle_s), cost(before_s))
    yield Row("join alone", "the command ends and says so", None, for_ever, for_ever)


def cost(seconds: float) -> float:
    """Returns what all machines cost in that time."""
    return MACHINES * USD * seconds / HOUR_S


# Live -----------------------------------------------------------------------------------------------------------------


class Processes:
    """Commands of the run, each in a group of its own, with their output in files of `folder`."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._folder, self._ends = folder, ends
        scripts = folder / "bin"
        scripts.mkdir()
        program = scripts / "echo-queue"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m echo_queue.cli "$@"\n')
        program.chmod(0o755)
        self._environ = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def begin(self, name: str, *command: str, **settings: str) -> "subprocess.Popen[bytes]":
        """Starts a command with these settings, by their environment variables."""
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**self._environ, **settings},
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._folder,
            )
        self._ends.callback(self.kill, process)
        return process

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()[-2_000:]


@contextmanager
def rented(folder: Path) -> Iterator[Path]:
    """Yields the folder of the driver's machines; kills what is left of them."""
    yield folder
    for lock in machines(folder):
        os.killpg(int(lock.read_text()), signal.SIGKILL)


def machines(folder: Path) -> list[Path]:
    """Returns the locks of the driver's machines that live."""
    return [lock for lock in folder.glob("*/*/lock") if is_locked(lock)]


def live() -> Live:
    """Kills a real learner, and waits for the end of what waited for it."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        harness = WorkerHarness(folder, save_model(folder / "model", seed=0), rollout={"grace_s": 10.0})
        ends.callback(harness.end)
        harness.configure()
        harness.submit(QUESTIONS, wanted="3")
        limits = {"every_s": 1.0, "rest_s": 2, "leave_s": 5, "stall_s": STALL_S, "machines": 1}
        file = folder / "fleet.toml"
        tables = toml_text.written(tables_of({"spot": 1.0}, **limits))
        file.write_text(f'format = 1\nname = "live"\n\n{tables}')
        begin, config = Processes(folder, ends), str(harness.path)
        patient = {"ECHO_QUEUE_ROLLOUT__IDLE_DEADLINE_S": str(PATIENT_S)}
        learner = begin.begin("learner", "echo-queue", "learner", config)
        alone = begin.begin("alone", "echo-queue", "worker", config, "--name", "alone", **patient)
        impatient = {"ECHO_QUEUE_ROLLOUT__IDLE_DEADLINE_S": str(IDLE_S), "CUDA_VISIBLE_DEVICES": ""}
        script = begin.begin("script", str(ROOT / "infra/workers.sh"), config, **impatient)
        fleet = ends.enter_context(rented(harness.config.run.dir / "fleet"))
        begin.begin("fleet", "echo-queue", "fleet", config, str(file), "--act", **patient)

        def at_work() -> bool:
            living = [one for one in harness.status().workers if one.heartbeat and one.heartbeat.groups]
            return harness.status().learner.number >= 2 and len(living) >= 3

        def told() -> str:
            return "\n".join(begin.said(name) for name in ("learner", "fleet", "script"))

        wait_until(at_work, "updates by three workers", LIVE_DEADLINE_S, told=told)
        begin.kill(learner)
        killed_s = time.monotonic()
        ended_s: dict[str, float] = {}

        def all_ended() -> bool:
            over = {"script": script.poll() is not None, "fleet": not machines(fleet)}
            for name, there in over.items():
                if there:
                    ended_s.setdefault(name, time.monotonic() - killed_s)
            return len(ended_s) == len(over)

        wait_until(all_ended, "the end of what waits", LIVE_DEADLINE_S, told=told)
        why = harness.queue.fleet().why
        return Live(
            controller_s=round(ended_s["fleet"], 1),
            workers_s=round(ended_s["script"], 1),
            workers_code=script.wait(),
            left_alone=alone.poll() is None,
            why=why,
        )


# Both -----------------------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    head = f"{'way to start':<26}{'what happens':<36}{'dismissed':>10}{'cost of a day':>15}{'before':>9}"
    lines = [head]
    for row in rows:
        after = "never" if row.dismissed_s is None else f"{row.dismissed_s / 60:.0f} min"
        lines.append(f"{row.way:<26}{row.how:<36}{after:>10}{row.usd:>11.2f} USD{row.alone_usd:>9.2f}")
    return "\n".join(lines)


def promises(rows: list[Row], played: Live | None) -> dict[str, bool]:
    saving = {row.way: row.saving for row in rows}
    targets = {
        f"{way}: a dead learner costs {LEAST_SAVING:.0%} less in a day": saving[way] >= LEAST_SAVING
        for way in ("echo-queue fleet", "Terraform, AWS and GCP", "Helm with its controller")
    }
    if played:
        targets |= {
            "live: the controller says why it has dismissed its machine": "no learner has been heard" in played.why,
            "live: the workers of a script end with the code of those that wait in vain": played.workers_code == IDLE,
            "live: a worker that is left alone still waits": played.left_alone,
        }
    return targets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--day-only", action="store_true", help="without the processes")
    parser.add_argument("--json", action="store_true", help="print one JSON document in the last line")
    options = parser.parse_args()
    rows = list(a_day())
    print(f"{MACHINES} machines at {USD} USD an hour; the learner dies\n{table(rows)}", flush=True)
    lost, played = Rows(), None
    with lost.row("live"):
        played = None if options.day_only else live()
    if played:
        print(
            f"\nlive, with stall_s {STALL_S:g} s and idle_deadline_s {IDLE_S:g} s, after the kill of the learner:\n"
            f"  the controller's machine ended after {played.controller_s:.0f} s, of which 60 show nobody is heard\n"
            f"  workers.sh ended after {played.workers_s:.0f} s, with code {played.workers_code}\n"
            f"  the controller says: {played.why}\n",
            flush=True,
        )
    figures = {"day": [asdict(row) for row in rows], "live": asdict(played) if played else None}
    return conclude(figures, lost.promises | promises(rows, played), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
