"""Controllers as processes, two at a time: they are killed, Redis is killed, the API throttles and loses answers, and
each machine is started once, told once through the queue, and ended only then."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echo_queue.atomic_file import write_atomically
from echo_queue.config import toml_text
from echo_queue.fleet.memory_codec import decoded
from echo_queue.fleet.state import Memory
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import library
from tests.fleet.fleet_harness import FleetHarness, tables_of
from tests.queue.clients import Clients
from tests.waiting import wait_until

RUN = "fleet"
SCRIPT = """\
import json, pathlib, sys
from echo_queue.fleet.drivers import LocalDriver
folder, url, what, *words = sys.argv[1:]
folder = pathlib.Path(folder)
program = (sys.executable, "-m", "tests.fleet.machine_process", url, "{run}")
driver = LocalDriver(
    folder / "machines", lambda name, pool: (*program, name, pool, str(folder / "journal")), grace_s=60.0
)
throttled = folder / "throttled"
left = int(throttled.read_text()) if throttled.exists() and what != "list" else 0
if left:
    throttled.write_text(str(left - 1))
    with (folder / "calls").open("a") as calls:
        calls.write(f"{{what}}\\n")
if left % 2:
    sys.exit("Rate exceeded")
match what:
    case "up":
        driver.start(*words)
    case "down":
        driver.end(words)
    case "list":
        print(json.dumps([{{"name": one.name, "pool": one.pool}} for one in driver.machines()]))
if left:
    sys.exit("no answer")
"""
"""A user's script. Of the calls that it throttles it refuses one, and of the next one the answer is lost, in turn."""


class Controllers:
    """A run with real servers, a user's script that starts processes, and the controllers that a test begins."""

    def __init__(self, folder: Path) -> None:
        self.redis = RedisServer(folder / "redis")
        self.redis.start()
        with self.redis.client() as client:
            library.load(client)
        self.harness = FleetHarness(Clients(self.redis.client(), RUN), self.redis.url, folder / "fleet")
        self.folder = self.harness.folder
        self.log = folder / "log"
        self._config, self._fleet = folder / "run.toml", folder / "fleet.toml"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._write_files(folder)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator["Controllers"]:
        fleet = cls(folder)
        try:
            yield fleet
        finally:
            for process in fleet._processes:
                process.kill()
                process.wait()
            fleet.redis.start()
            fleet.harness.end()
            fleet.redis.stop()

    def begin(self) -> None:
        """Begins one more controller."""
        command = [sys.executable, "-m", "echo_queue", "fleet", str(self._config), str(self._fleet), "--act"]
        with self.log.open("ab") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def kill_leader(self) -> None:
        """Kills whichever controller leads, and begins another one."""
        leader = int(self.harness.queue.fleet().leader.split("-")[-2])
        (process,) = [one for one in self._processes if one.pid == leader]
        os.kill(leader, signal.SIGKILL)
        process.wait()
        self.begin()

    def throttle(self, calls: int) -> None:
        """Makes the place throttle its next calls."""
        write_atomically(self.folder / "throttled", str(calls).encode(), "number of calls")

    def throttled(self, what: str) -> int:
        """Returns how often it has throttled this call."""
        path = self.folder / "calls"
        return path.read_text().splitlines().count(what) if path.exists() else 0

    def noted(self, word: str) -> list[str]:
        """Returns the machines that have said so of themselves."""
        return [line.split()[1] for line in self.harness.written() if line.startswith(word)]

    def until(self, what: str, *, began: int, left: int, wanted: int) -> None:
        """Waits until so many machines have ever begun and left, and so many are wanted, there and known to serve.

        The learner is heard meanwhile.
        """

        def all_there() -> bool:
            self.harness.queue.reclaim()
            machines = (len(self.harness.driver.machines()), len(self._plan().serving))
            asked = sum(self.harness.queue.fleet().wanted.values())
            return (len(self.noted("began")), len(self.noted("left")), asked, *machines) == (began, left, *3 * [wanted])

        wait_until(all_there, what, told=lambda: f"{self.harness.written()}\n{self.log.read_text()[-4000:]}")

    def _plan(self) -> Memory:
        noted = self.harness.queue.client.hget(self.harness.queue.keys.fleet, "plan") or b""
        assert isinstance(noted, bytes)
        return decoded(noted) or Memory()

    def _write_files(self, folder: Path) -> None:
        self._config.write_text(
            toml_text.written({"run": {"name": RUN, "dir": str(folder / "run")}, "redis": {"url": self.redis.url}})
        )
        (folder / "place.py").write_text(SCRIPT.format(run=RUN))
        script = [sys.executable, str(folder / "place.py"), str(self.folder), self.redis.url]
        commands = {what: [*script, what] for what in ("up", "down", "list")}
        tables = tables_of({"spot": 1.0, "rest": 2.0}, driver="command", every_s=0.2, **commands)
        tables["prices"] = {"old": "mark"}
        self._fleet.write_text(f'format = 1\nname = "test"\n\n{toml_text.written(tables)}')


@pytest.mark.proof(kind="troubles of a controller", share=0.05)
@pytest.mark.timeout(900)
def test_two_controllers_that_die_without_redis_or_an_api_that_answers_start_and_end_each_machine_once(
    tmp_path: Path,
) -> None:
    with Controllers.opened(tmp_path) as fleet:
        fleet.begin()
        fleet.begin()
        fleet.harness.trains(1.0)
        fleet.until("three machines of two controllers at once", began=3, left=0, wanted=3)

        refusals = "nothing is ordered, and the fleet stays as it is"
        said = fleet.log.read_text().count(refusals)
        fleet.redis.kill()
        wait_until(lambda: fleet.log.read_text().count(refusals) >= said + 2, "both to hear nothing of Redis")
        assert (len(fleet.noted("began")), len(fleet.harness.driver.machines())) == (3, 3)
        fleet.redis.start()
        fleet.until("the same three machines", began=3, left=0, wanted=3)

        fleet.throttle(5)
        fleet.harness.trains(0.5)
        wait_until(lambda: fleet.throttled("up") >= 2, "a start whose answer is lost")
        fleet.kill_leader()
        fleet.until("five machines of its successor", began=5, left=0, wanted=5)
        assert fleet.throttled("up") >= 4, "refused, and without an answer, each twice"

        fleet.throttle(3)
        fleet.harness.trains(2.0)
        wait_until(lambda: fleet.throttled("down"), "an end that is throttled")
        fleet.kill_leader()
        fleet.until("two machines of another successor", began=5, left=3, wanted=2)
        assert fleet.throttled("down") >= 2, "refused, and without an answer"
        began, left, ended = (sorted(fleet.noted(word)) for word in ("began", "left", "ended"))
        assert left == ended and len(set(began)) == 5, "nothing began, was told or was ended twice"
        assert sorted(one.name for one in fleet.harness.driver.machines()) == sorted(set(began) - set(left))
