"""Starts the ranks of a learner on this machine, and ends all of them when one ends.

- A rank that dies takes the others with it at once, since none of them can go on alone. All are then started again, and
  continue from the newest checkpoint; ranks that keep dying end the learner.
- SIGTERM and SIGINT ask rank 0 to end, which lets the others end after their current update.
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
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.reap import reap
from echo_queue.launch.signals import ENDING, dispatch_signals
from learner.ranks.place import LAUNCHED, LISTENER

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
POLL_S = 0.05
LAST_WORDS_S = 1.0
"""Time in which ranks may print why they end, once one of them has died."""
CLOSE_S = 60.0
"""Time that the other ranks have to end after rank 0 has finished."""
GONE_S = 30.0
DONE, AGAIN, REFUSED = 0, 1, 2
"""Exit codes of a rank: it is done; all ranks are to be started again; a person must act."""
BACKOFF = RestartBackoff(first_pause_s=0.5, longest_pause_s=8.0, settled_s=60.0, most_ends=5)


class RanksError(EchoQueueError):
    """The ranks died too often."""


def launch(command: Sequence[str], size: int, backoff: RestartBackoff = BACKOFF) -> int:
    """Runs `command` as `size` ranks until they are done, and returns the learner's exit code. Raises `RanksError`.

    Call it in the main thread.
    """
    stop = threading.Event()
    ranks: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        stop.set()
        if ranks:
            _signal(ranks[0], signal.SIGTERM)

    dispatch_signals(dict.fromkeys(ENDING, end))
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
            return DONE
        log.warning("%s: all %d ranks start again, from the newest checkpoint", cause, size)


def start(command: Sequence[str], size: int) -> list["subprocess.Popen[bytes]"]:
    """Starts the ranks. Rank 0 gets a socket that listens already, so no other program can take its port."""
    with socket.create_server((LOOPBACK, 0), backlog=size) as listener:
        return [_start(command, rank, size, listener) for rank in range(size)]


def wait(ranks: Sequence["subprocess.Popen[bytes]"]) -> tuple[int, str]:
    """Waits until rank 0 is done or any rank has died, then until all have ended.

    Returns the learner's exit code, and what ended it.
    """
    dead: dict[int, int] = {}
    while not dead and ranks[0].poll() is None:
        time.sleep(POLL_S)
        dead = _dead(ranks)
    give_up = time.monotonic() + (LAST_WORDS_S if dead else CLOSE_S)
    while time.monotonic() < give_up and any(rank.poll() is None for rank in ranks):
        time.sleep(POLL_S)
    first = dead or _dead(ranks)
    dead = _dead(ranks)
    for number, rank in enumerate(ranks):
        if rank.poll() is None:
            _signal(rank, signal.SIGKILL)
        reap(rank, GONE_S, f"learner rank {number}")
    cause = ", ".join(f"learner rank {rank} {_ending(code)}" for rank, code in first.items())
    if REFUSED in dead.values():
        return REFUSED, cause
    return (AGAIN if dead else DONE), cause


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
    # gloo looks its address up by the machine's name otherwise; torch logs each wait that runs out.
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
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


def _dead(ranks: Sequence["subprocess.Popen[bytes]"]) -> dict[int, int]:
    """Returns the exit codes of ranks that have failed, by rank."""
    codes = {number: rank.poll() for number, rank in enumerate(ranks)}
    return {number: code for number, code in codes.items() if code}


def _signal(rank: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        failpoints.step("signal rank", lambda: rank.send_signal(number), number)


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
