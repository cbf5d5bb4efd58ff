"""The fork server: a process that has imported everything and forks one child for each request, within milliseconds.

It has no threads and has computed nothing, so that its children find everything as a fresh interpreter would, but
for the time. It ends with the process that started it.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

DEADLINE_S = 180.0


@dataclass(frozen=True)
class ForkRequest:
    """A role's process to fork: it writes its steps to `record` and dies after step `crash_at`, if these are given."""

    role: str
    about: Any
    log: Path
    crash_at: str = ""
    record: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


class RoleProcess:
    """One process, from outside."""

    def __init__(self, request: ForkRequest) -> None:
        self.request = request
        self.pid = 0
        self.code: int | None = None
        self.begun, self.over = threading.Event(), threading.Event()

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit code, negative if a signal ended it."""
        assert self.over.wait(deadline_s), f"{self.request.role} did not end within {deadline_s:.0f} s:\n{self.told()}"
        assert self.code is not None
        return self.code

    def signal(self, number: int) -> None:
        """Sends the signal, unless the process is over or ends just now."""
        with suppress(ProcessLookupError):
            if not self.over.is_set():
                os.kill(self.pid, number)

    def end(self) -> int:
        """SIGKILL to the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.wait(60.0)

    def told(self) -> str:
        """The last that it printed."""
        return self.request.log.read_text(errors="replace")[-4_000:] if self.request.log.exists() else "(nothing)"


class ForkServer:
    """The fork server, from outside. Its methods may be called from several threads."""

    def __init__(self, base: Path, log: Path) -> None:
        """`base`: a model folder, which is loaded once so that the code for it is there."""
        ours, theirs = socket.socketpair()
        program = "import sys; from tests.faults.crash_points.fork_server import main; main(*sys.argv[1:])"
        command = [sys.executable, "-c", program, str(theirs.fileno()), str(base)]
        with log.open("ab") as file:
            self._server = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        theirs.close()
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self._lock = threading.Lock()
        self._waiting: list[RoleProcess] = []
        self._processes: dict[int, RoleProcess] = {}
        threading.Thread(target=self._listen, name="fork server", daemon=True).start()

    def begin(self, request: ForkRequest) -> RoleProcess:
        process = RoleProcess(request)
        with self._lock:
            self._waiting.append(process)
            self._connection.send(request)
        assert process.begun.wait(DEADLINE_S), "the fork server does not answer"
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self._processes.values()):
            process.end()
        self._server.terminate()
        self._server.wait(60)

    def _listen(self) -> None:
        while True:
            try:
                pid, code = self._connection.recv()
            except (EOFError, OSError):
                return
            if code is None:
                with self._lock:
                    process = self._waiting.pop(0)
                process.pid = pid
                self._processes[pid] = process
                process.begun.set()
            else:
                process = self._processes.pop(pid)
                process.code = code
                process.over.set()


def main(descriptor: str, base: str) -> None:
    warnings.simplefilter("ignore")
    _warm(base)
    connection: Connection[Any, Any] = Connection(int(descriptor))
    awake, wake = socket.socketpair()
    awake.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is awake:
                    awake.recv(4096)
                    _reap(connection)
                    continue
                try:
                    request = connection.recv()
                except EOFError:
                    return
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    signal.set_wakeup_fd(-1)
                    connection.close()
                    _run_child(request)
                os.setpgid(pid, pid)  # the child does, too: either may be first
                connection.send((pid, None))


def _run_child(request: ForkRequest) -> None:
    from tests.faults.crash_points import role_processes

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(request.environ)
    code = 1
    try:
        role_processes.run(
            request.role, request.about, request.log, role_processes.StepObserver(request.record, request.crash_at)
        )
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _reap(connection: "Connection[Any, Any]") -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        connection.send((pid, os.waitstatus_to_exitcode(status)))


def _warm(base: str) -> None:
    """Imports, and what libraries import when they are first used."""
    import boto3
    import celery.apps.worker
    import celery.concurrency.solo
    import kombu.transport.redis
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from echo_queue.weights import delta
    from tests.faults.crash_points import role_processes

    assert celery.apps.worker and celery.concurrency.solo and kombu.transport.redis and role_processes
    torch.set_num_threads(1)
    disable_progress_bar()
    AutoModelForCausalLM.from_pretrained(base)
    AutoTokenizer.from_pretrained(base)
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url="http://127.0.0.1:9", **keys)
    base, new = {"w": torch.zeros(1_000)}, {"w": torch.arange(1_000.0) % 3}
    for shard in (*delta.encode({}, base), *delta.encode(base, new)):  # compiles what there is to compile
        delta.apply(shard.data, base, base)
