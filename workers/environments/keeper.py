"""The process between a worker and its environment, which ends whatever the environment has started.

- `keep` forks: the child becomes the environment, the parent its keeper. Each has a session of its own.
- The keeper is the subreaper of its descendants (prctl(2)), so none of them can leave it: neither by `setsid`, nor by
  ending the parent between them.
- SIGINT, SIGTERM and SIGHUP do nothing to either, from their start on, since the worker decides when they end. Slurm,
  systemd and terminals send them to every process of a job at once.
- The environment's end, the worker's wish or the worker's death, which the end of the pipe `life` tells of, is the end
  of them all: the keeper kills its descendants until none is left. Then it ends as the environment did.

It imports nothing of this package, so that it costs a few milliseconds. Other systems than Linux know no subreaper:
there the environment's process group is ended.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
END_S = 8.0
"""The longest time that the kernel may take to end what was killed. The worker waits a little longer."""
LOOK_S = 0.002


@contextmanager
def held_back() -> Iterator[None]:
    """Holds `SIGNALS` back in this thread, and in a process that it starts meanwhile until that calls `keep`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep(life: int, connection: int) -> None:
    """Returns in the environment's process, which has `connection`. The keeper, which has `life`, never returns."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # programs that the environment starts would inherit SIG_IGN
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.setsid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    environment = os.fork()
    if environment:
        os.close(connection)
        _end_as(_kept(environment, life))
    os.close(life)
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)


def descendants(root: int) -> list[int]:
    """Returns the processes below `root`, by what /proc says of each one's parent."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found, left = list[int](), [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield int(stat.parent.name), int(stat.read_bytes().rpartition(b")")[2].split()[1])


def _kept(environment: int, life: int) -> int:
    """Waits for the end of the environment or of `life`, and ends all descendants. Returns the environment's status."""
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    ended, poll = dict(_ended()), select.poll()  # `select` knows no descriptor above 1023, and a worker may have more
    for descriptor in (life, wake):
        poll.register(descriptor, select.POLLIN)
    while environment not in ended:
        told = {descriptor for descriptor, _ in poll.poll()}
        if wake in told:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
        ended = dict(_ended())
        if life in told:
            break
    return _end_all(environment, ended)


def _ended() -> Iterator[tuple[int, int]]:
    """Yields the children that have ended, with their statuses."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _end_all(environment: int, ended: dict[int, int]) -> int:
    give_up = time.monotonic() + END_S
    while _has_children() and time.monotonic() < give_up:
        if environment not in ended:
            _kill(os.killpg, environment)
        for pid in descendants(os.getpid()):
            _kill(os.kill, pid)
        time.sleep(LOOK_S)
        ended.update(_ended())
    return ended.get(environment, int(signal.SIGKILL))


def _has_children() -> bool:
    """Returns whether there is a child, which a descendant becomes once its own parent has ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill(kill: Callable[[int, int], None], pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, signal.SIGKILL)


def _end_as(status: int) -> NoReturn:
    """Ends this process as one of that status has ended, without another core dump."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # of SIGKILL, which has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
