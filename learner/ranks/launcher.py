"""Starts the ranks of a learner on this machine, and ends all of them when one ends.

- A rank that dies takes the others with it at once, since none of them can go on alone. All are then started again, and
  continue from the newest checkpoint; ranks that keep dying end the learner.
- SIGTERM, SIGINT and SIGHUP ask rank 0 to end, which lets the others end after their current update.
- A rank notices by the end of its standard input that this process is gone, and ends.

This module needs no torch: the process that waits stays small.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from echo_queue import failpoints
from echo_queue.errors import AGAIN, DONE, HOPELESS, REFUSED, EchoQueueError, Problem
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.reap import ending as ended_by
from echo_queue.launch.reap import reap
from echo_queue.launch.signals import dispatch_signals, ending
from learner.ranks.place import LAUNCHED, LISTENER

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
POLL_S = 0.05
KILLED_S, ABORTED_S, LAST_WORDS_S, VERDICT_S, CLOSE_S = 1.0, 10.0, 6.0, 30.0, 60.0
"""Time that the ranks that are left have to end: after one was killed; after one was ended by SIGABRT, as NCCL ends all
that wait for a rank that hangs, each at its own deadline; after rank 0 has ended with an error, to say why they end,
too; after another rank has, since rank 0 may know that a person must act; after rank 0 is done."""
GONE_S = 30.0
ABORTED = -signal.SIGABRT


class RanksError(EchoQueueError):
    """The ranks died too often."""


def backoff_for(longest_wait_s: float) -> RestartBackoff:
    """Returns when ranks that keep ending are given up; a life that ended with the longest wait counts as well."""
    settled_s = 60.0 + 2 * longest_wait_s
    return RestartBackoff(first_pause_s=0.5, longest_pause_s=8.0, settled_s=settled_s, most_ends=5)


def launch(command: Sequence[str], size: int, backoff: RestartBackoff) -> int:
    """Runs `command` as `size` ranks until they are done, and returns the learner's exit code. Raises `RanksError`.

    Call it in the main thread.
    """
    stop = threading.Event()
    ranks: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        stop.set()
        if ranks:
            _signal(ranks[0], signal.SIGTERM)

    dispatch_signals(dict.fromkeys(ending(), end))
    ends = 0
    while True:
        began = time.monotonic()
        ranks[:] = start(command, size)
        if stop.is_set():
            end()
        code, cause = wait(ranks)
        if code != AGAIN:
            return code
        ends = backoff.ends_in_a_row(ends, time.monotonic() - began)
        if ends >= backoff.most_ends:
            fix = "read the lines above; a restart continues from the newest checkpoint"
            raise RanksError(Problem("learner", f"{cause}; its ranks ended {ends} times in a row", fix))
        if stop.wait(backoff.pause_s(ends)):
            return AGAIN
        log.warning("%s: all %d ranks start again, from the newest checkpoint", cause, size)


def start(command: Sequence[str], size: int) -> list["subprocess.Popen[bytes]"]:
    """Starts the ranks. Rank 0 gets a socket that listens already, so no other program can take its port."""
    with socket.create_server((LOOPBACK, 0), backlog=size) as listener:
        return [_start(command, rank, size, listener) for rank in range(size)]


def wait(ranks: Sequence["subprocess.Popen[bytes]"]) -> tuple[int, str]:
    """Waits until rank 0 is done or any other rank has ended, then until all have ended.

    Returns the learner's exit code, and what ended it. Rank 0 alone can say that the run is done.
    """
    while not (first := _ended(ranks)):
        time.sleep(POLL_S)
    began = time.monotonic()
    while len(codes := _ended(ranks)) < len(ranks) and time.monotonic() < began + _patience_s(codes):
        time.sleep(POLL_S)
    cause = _cause(first, codes, len(ranks))
    for number, rank in enumerate(ranks):
        if number not in codes:
            log.warning("learner rank %d is killed, since the others have ended", number)
            _signal(rank, signal.SIGKILL)
        reap(rank, GONE_S, f"learner rank {number}")
    for verdict in (HOPELESS, REFUSED):
        if verdict in codes.values():
            return verdict, cause
    return (DONE if codes.get(0) == DONE else AGAIN), cause


def end_with_launcher() -> None:
    """Ends this process when the launcher, which holds the other end of its standard input, is gone."""

    def watch() -> None:
        # Without a buffer, whose lock this thread would hold at the end of the process.
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(AGAIN)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


def variables(rank: int, size: int, listener: socket.socket, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a rank: torchrun's variables and what torch needs on one machine."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    master = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(listener.getsockname()[1])}
    defaults = {"GLOO_SOCKET_IFNAME": "lo"}  # gloo looks its address up by the machine's name otherwise
    found = {**defaults, **environ, **place, **master, LAUNCHED: "1"}
    if rank == 0:
        found[LISTENER] = str(listener.fileno())
    return found


def _start(command: Sequence[str], rank: int, size: int, listener: socket.socket) -> "subprocess.Popen[bytes]":
    def spawn() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            env=variables(rank, size, listener, os.environ),
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()] if rank == 0 else [],
        )

    return failpoints.step("start rank", spawn, rank)


def _cause(first: Mapping[int, int], codes: Mapping[int, int], size: int) -> str:
    """Says how the first ranks ended. `codes`: the exit codes of those that have ended by themselves.

    Where NCCL has ended the ranks that waited, which names nobody, the ranks that still run are the ones that hang.
    """
    cause = ", ".join(f"learner rank {rank} {ended_by(code)}" for rank, code in first.items())
    left = [str(rank) for rank in range(size) if rank not in codes]
    if ABORTED in codes.values() and left:
        cause += f", while learner rank {', '.join(left)} still ran: it may hang"
    return cause


def _patience_s(codes: Mapping[int, int]) -> float:
    """Returns how long the ranks that are left have to end, after those with these exit codes."""
    if ABORTED in codes.values():
        return ABORTED_S
    if any(code < 0 for code in codes.values()):
        return KILLED_S
    return VERDICT_S if 0 not in codes else CLOSE_S if codes[0] == DONE else LAST_WORDS_S


def _ended(ranks: Sequence["subprocess.Popen[bytes]"]) -> dict[int, int]:
    """Returns the exit codes of the ranks that have ended, by rank."""
    codes = {number: rank.poll() for number, rank in enumerate(ranks)}
    return {number: code for number, code in codes.items() if code is not None}


def _signal(rank: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        failpoints.step("signal rank", lambda: rank.send_signal(number), number)
