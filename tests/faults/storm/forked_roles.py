"""The processes of a storm, forked instead of started, so that a role is back within milliseconds.

- The supervisor is the real one; its roles are children forked from it, each the leader of its own group and known
  to the guard before it begins, as the real ones are.
- Only descendants of the calling process are killed; it adopts the processes that its children leave behind.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from echo_queue.errors import EchoQueueError
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.supervisor import Role, Supervisor, sign
from tests.faults.crash_points.forked_process import POLL_S, Forked, run_child, set_process_name
from tests.faults.storm.roles import run_role
from tests.processes import process_stat

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
NEVER = 10**9
BACKOFF = RestartBackoff(first_pause_s=0.02, longest_pause_s=0.3, settled_s=1.0, most_ends=NEVER)


@dataclass(frozen=True)
class Process:
    """A living process, by the name it gave itself."""

    pid: int
    parent: int
    name: str
    state: str

    @property
    def rank(self) -> bool:
        """True for a rank of a learner."""
        return " rank " in self.name


def fork(name: str, run: Callable[[], int], log: Path) -> Forked:
    """Forks a child called `name` that runs `run`, ends with its exit code, and is killed when this process ends."""

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return _fork(name, run, file, die_with_parent)


def supervise(directory: Path, roles: tuple[Role, ...]) -> int:
    """Runs the supervisor of a storm: it keeps `roles` running until SIGTERM."""
    try:
        configured = Supervisor(
            directory / "run", backoff=BACKOFF, launch=partial(launch, directory), most_refusals=NEVER
        )
        with configured as supervisor:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, supervisor.interrupt)
            supervisor.start(*roles)
            while True:
                supervisor.tick()
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        return 0
    except EchoQueueError as error:
        print(error, flush=True)
        return 2


def launch(directory: Path, role: Role, environ: Mapping[str, str], log: IO[bytes], guard: IO[bytes]) -> Forked:
    """The `Launch` that forks the role."""

    def announce() -> None:
        # As the shell's does in `supervisor.spawn`, this ends the child if the guard is gone: after a power cut that
        # struck the supervisor while it forked.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.write(guard.fileno(), f"{sign(role)} {os.getpid()}\n".encode())
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    return _fork(role.name, lambda: run_role(directory, role.command), log, announce)


def launch_machine(
    directory: Path, command: Sequence[str], environ: Mapping[str, str], lock: IO[str], log: IO[bytes]
) -> Forked:
    """Forks a machine of the fleet; its name is the command's last word. It outlives the controller that started it."""
    name, pool = command[-1], environ["ECHO_QUEUE_ROLLOUT__POOL"]

    def announce() -> None:
        os.environ.update(environ)
        os.write(lock.fileno(), f"{os.getpid()}\n".encode())

    with (directory / "logs" / f"{name}.log").open("ab") as own:
        return _fork(pool, lambda: run_role(directory, ("machine", name)), own, announce, kept=lock.fileno())


def _fork(
    name: str, run: Callable[[], int], log: IO[bytes], announce: Callable[[], None], kept: int | None = None
) -> Forked:
    pid = os.fork()
    if pid == 0:
        _run_child(name, run, log, announce, kept)
    return Forked(pid)


def _run_child(
    name: str, run: Callable[[], int], log: IO[bytes], announce: Callable[[], None], kept: int | None
) -> NoReturn:
    """Runs the child to its end. It holds no file of its parent's but the log, and the one `kept`."""

    def prepare() -> None:
        os.setsid()
        set_process_name(name)
        announce()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        if kept is not None:
            os.dup2(kept, 3)
        os.closerange(3 + (kept is not None), 1 + max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()))

    run_child(prepare, run)


def adopt_orphans() -> None:
    """Makes descendants whose parent dies children of this process, from now on."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap(but: frozenset[int]) -> None:
    """Buries adopted children that have ended; those in `but` are waited for elsewhere."""
    for process in descendants():
        if process.parent == os.getpid() and process.state == "Z" and process.pid not in but:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def descendants() -> list[Process]:
    """All processes below this one, zombies included."""
    pids = (entry.name for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    known = [process for pid in pids if (process := process_of(int(pid)))]
    children: dict[int, list[Process]] = {}
    for process in known:
        children.setdefault(process.parent, []).append(process)
    found, ahead = [], [os.getpid()]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += [process.pid for process in below]
    return found


def process_of(pid: int) -> Process | None:
    """Returns the process of this number; None if there is none."""
    stat = process_stat(pid)
    return Process(pid, stat.parent, stat.name, stat.state) if stat else None
