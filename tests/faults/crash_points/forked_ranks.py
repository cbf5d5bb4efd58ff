"""The ranks of a learner, forked from their launcher instead of started, so that they are there within milliseconds.

The launcher itself is the real one. A forked rank finds what a started one would: the launcher's variables, a standard
input that ends with the launcher, rank 0's listening socket, and no other file of the launcher's but its output.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from echo_queue import failpoints
from learner.ranks import launcher
from tests.faults.crash_points.forked_process import Forked, run_child


class ForkedRank(Forked):
    """A rank, from outside. `stdin`: the end of its standard input that keeps it alive."""

    def __init__(self, pid: int, stdin: int) -> None:
        super().__init__(pid)
        self._stdin = os.fdopen(stdin, "wb", buffering=0)


def fork_ranks(run: Callable[[int], int]) -> None:
    """Makes the launcher of this process fork its ranks. Each calls `run` with its number, for its exit code."""
    launcher._start = partial(_start, run)  # type: ignore[assignment]


def _start(
    run: Callable[[int], int], command: Sequence[str], rank: int, size: int, listener: socket.socket
) -> ForkedRank:
    def fork() -> ForkedRank:
        theirs, ours = os.pipe()
        environ = launcher.variables(rank, size, listener, os.environ)
        pid = os.fork()
        if pid == 0:
            _run_rank(partial(run, rank), environ, theirs, listener.fileno() if rank == 0 else 0)
        os.close(theirs)
        return ForkedRank(pid, ours)

    return failpoints.step("start rank", fork, rank)


def _close_all_but(kept: int) -> None:
    """Closes every file but standard input and output and `kept`."""
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != kept:
            with suppress(OSError):
                os.close(descriptor)


def _run_rank(run: Callable[[], int], environ: Mapping[str, str], stdin: int, kept: int) -> NoReturn:
    """Runs the rank to its end. `kept`: the one file that it has of the launcher's, besides its output."""

    def prepare() -> None:
        os.dup2(stdin, 0)
        _close_all_but(kept)
        os.environ.update(environ)

    run_child(prepare, run)
