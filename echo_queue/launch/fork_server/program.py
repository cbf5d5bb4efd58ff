"""The fork server: `python -P -m echo_queue.launch.fork_server.program MODULE` imports that module, which takes
seconds, and then forks a process at each request.

- It opens no connection and computes nothing, and of threads it has at most the pool of a library for linear algebra,
  which ends it before a fork. So a child finds what a new interpreter would find.
- A child is what its command line says: it has the arguments, the process title, the files and the session that the
  program would have, and random numbers of its own.
- A child leads its own process group before the supervisor hears of it, and begins when the supervisor says so, which
  has told the guard by then. If the fork server or the supervisor dies before that, the child ends.
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
from echo_queue.launch.fork_server.fork_request import MESSAGE_BYTES, READY, REFUSED, ForkRequest
from echo_queue.launch.import_path import PYTHON


def main() -> None:
    with collection.paused():
        import_module(sys.argv[1])
    # Children share these pages with one another for as long as no collector writes into them.
    gc.freeze()
    if request := serve(socket.socket(fileno=0)):
        run(request)


def run(request: ForkRequest) -> None:
    """Runs the module in this process, as `python -m` does. Raises what it raises, `SystemExit` among it."""
    setproctitle(" ".join((*PYTHON, "-m", request.module, *request.arguments)))
    sys.argv = [request.module, *request.arguments]
    run_module(request.module, run_name="__main__", alter_sys=True)


def serve(supervisor: socket.socket) -> ForkRequest | None:
    """Answers the supervisor until it hangs up, and returns None then; returns in each child with its request."""
    held: dict[int, int] = {}
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
                    message, files, _, _ = socket.recv_fds(supervisor, MESSAGE_BYTES, 1)
                    if not message:
                        return None
                    if not files:
                        _begin(held.pop(orjson.loads(message)["begin"]))
                    elif _fork(supervisor, files[0], held):
                        return ForkRequest.decoded(message)
    return None


def _fork(supervisor: socket.socket, log: int, held: dict[int, int]) -> bool:
    """Forks, and tells the supervisor. Returns True in the child once it may begin, with the role's files and signals.

    `held`: the pipe of each child that has not begun, by its process id; the new one is added.
    """
    may_begin, begin = os.pipe()
    is_ready, ready = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        for file in (log, may_begin, begin, is_ready, ready):
            os.close(file)
        print(f"cannot fork: {error}", file=sys.stderr, flush=True)
        supervisor.send(REFUSED)
        return False
    if pid == 0:
        try:
            for file in (begin, is_ready, *held.values()):
                os.close(file)
            _await_begin(ready, may_begin)
            _take_files(supervisor, log)
            _draw_anew()
        except BaseException:
            os._exit(1)
        return True
    for file in (log, may_begin, ready):
        os.close(file)
    os.read(is_ready, 1)  # nothing comes from a child that has ended already, of which the supervisor hears next
    os.close(is_ready)
    held[pid] = begin
    supervisor.send(orjson.dumps({"pid": pid}))
    return False


def _begin(pipe: int) -> None:
    with suppress(BrokenPipeError):  # the child was killed meanwhile
        os.write(pipe, b"!")
    os.close(pipe)


def _await_begin(ready: int, may_begin: int) -> None:
    """In the child: says that it is ready, and returns once it may begin; it ends if the other side is gone."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.write(ready, b"!")
    os.close(ready)
    if not os.read(may_begin, 1):
        os._exit(1)
    os.close(may_begin)


def _take_files(supervisor: socket.socket, log: int) -> None:
    supervisor.detach()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    for file in (nothing, log):
        os.close(file)


def _draw_anew() -> None:
    """Seeds the generators of numpy and torch anew, as Python does its own after a fork."""
    np.random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()


def _ended() -> Iterator[tuple[int, int]]:
    """Yields the children that have ended, each with its exit code, as `subprocess` gives it."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


if __name__ == "__main__":
    main()
