"""The fork server: `python -m echo_queue.launch.fork_server.program MODULE` imports that module, which takes seconds,
and then forks a process at each request.

- It starts no thread, opens no connection and computes nothing, so a child finds what a new interpreter would find.
- A child is what its command line says: it has the arguments, the process title, the files and the session that the
  program would have, and the guard hears of it before it begins.
- A child begins only when the supervisor has been told its process id, so none runs of which nobody knows.
- Standard input is a socket of the supervisor's. When it closes, the fork server ends and its children go on.
"""

import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib import import_module
from runpy import run_module

import numpy as np
import orjson
from setproctitle import setproctitle

from echo_queue.launch import collection
from echo_queue.launch.fork_server.fork_request import MESSAGE_BYTES, READY, ForkRequest


def main() -> None:
    with collection.paused():
        import_module(sys.argv[1])
    # Children share these pages with one another for as long as no collector writes into them.
    gc.freeze()
    if request := serve(socket.socket(fileno=0)):
        run(request)


def run(request: ForkRequest) -> None:
    """Runs the module in this process, as `python -m` does. Raises what it raises, `SystemExit` among it."""
    setproctitle(" ".join((sys.executable, "-m", request.module, *request.arguments)))
    sys.argv = [request.module, *request.arguments]
    run_module(request.module, run_name="__main__", alter_sys=True)


def serve(supervisor: socket.socket) -> ForkRequest | None:
    """Answers the supervisor until it hangs up, and returns None then; returns in each child with its request."""
    with ExitStack() as opened:
        awake, wake = map(opened.enter_context, socket.socketpair())
        awake.setblocking(False)
        wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno())
        selector = opened.enter_context(selectors.DefaultSelector())
        selector.register(supervisor, selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        with suppress(ConnectionError):
            supervisor.send(READY)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is awake:
                        awake.recv(MESSAGE_BYTES)
                        for pid, code in _ended():
                            supervisor.send(orjson.dumps({"pid": pid, "code": code}))
                        continue
                    message, files, _, _ = socket.recv_fds(supervisor, MESSAGE_BYTES, 2)
                    if not message:
                        return None
                    request = ForkRequest.decoded(message)
                    if _fork(supervisor, request, *files):
                        return request
    return None


def _fork(supervisor: socket.socket, request: ForkRequest, log: int, guard: int) -> bool:
    """Forks, and tells the supervisor. Returns True in the child, which has the role's files and signals then."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        for file in (log, guard, told):
            os.close(file)
        supervisor.send(orjson.dumps({"pid": pid}))
        os.write(tell, b"!")
        os.close(tell)
        return False
    os.close(tell)
    os.setsid()
    os.write(guard, f"{request.sign} {os.getpid()}\n".encode())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not os.read(told, 1):
        os._exit(1)
    supervisor.detach()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    for file in (nothing, log, guard, told):
        os.close(file)
    np.random.seed()  # Python seeds its own generator anew
    return True


def _ended() -> Iterator[tuple[int, int]]:
    """Yields the children that have ended, each with its exit code, as `subprocess` gives it."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


if __name__ == "__main__":
    main()
