"""Processes in the laboratory's namespaces: started, sent orders and read events in lines of JSON, and ended.

Each is killed with the process that started it, and anything left over is removed with its namespace.
"""

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.laboratory.network import namespace_of
from echo_queue.errors import DeadlineError, EchoQueueError, Problem

ENDED_S = 10.0
STACK_DUMP_S = 0.5
LOG_TAIL_BYTES = 4000
NODE, LEARNER_NODE = "benchmarks.laboratory.node", "benchmarks.laboratory.learner_node"


class NodeError(EchoQueueError):
    """A process of the laboratory failed."""


@dataclass(frozen=True)
class Event:
    """A node's report: `what` happened at `at_s` (monotonic, one clock for the machine), with its figures."""

    what: str
    at_s: float
    figures: Mapping[str, Any]


def spawn(
    place: str, words: tuple[str, ...], log: Path, environ: Mapping[str, str] | None = None, **pipes: int
) -> "subprocess.Popen[bytes]":
    """Starts a process in namespace `place` that does not outlive this one."""
    inside = ("setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", namespace_of(place), *words)
    with log.open("ab") as errors:
        output: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": errors, **pipes}
        return subprocess.Popen(inside, env=environ, stderr=errors, start_new_session=True, **output)


class Node:
    """A process of `module` at `place`, with `spec` as its argument."""

    def __init__(self, place: str, directory: Path, spec: Mapping[str, Any], module: str = NODE) -> None:
        self.name = place
        self._log = directory / f"{place}.log"
        plan = directory / f"{place}.json"
        plan.write_bytes(orjson.dumps(spec, default=str))
        words = (sys.executable, "-m", module, str(plan))
        self.process = spawn(place, words, self._log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._events: queue.Queue[Event] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def order(self, what: str, **details: Any) -> None:
        """Sends an order to the process; a process that has ended ignores it."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the experiment may have killed it
            self.process.stdin.write(orjson.dumps({"do": what, **details}) + b"\n")
            self.process.stdin.flush()

    def await_event(self, what: str, deadline_s: float) -> Event:
        """Waits for the next event of that name and passes over others. Raises `NodeError` or `DeadlineError`."""
        give_up = time.monotonic() + deadline_s
        while True:
            try:
                event = self._events.get(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(STACK_DUMP_S)
                fix = f"its log ends: {self._tail()}"
                raise DeadlineError(Problem(self.name, f"has not said {what!r} in {deadline_s:g} s", fix)) from None
            if event.what == "ended":
                raise NodeError(Problem(self.name, f"ended before it said {what!r}", f"its log ends: {self._tail()}"))
            if event.what == what:
                return event

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(ENDED_S)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = orjson.loads(line)
            self._events.put(Event(said.pop("what"), said.pop("at_s"), said))
        self._events.put(Event("ended", time.monotonic(), {}))

    def _tail(self) -> str:
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip() or "empty"
