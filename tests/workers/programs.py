"""Reward functions that start processes, fork or leave, for the tests of an environment's processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"


def starts(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
    """Starts programs that hold their own, writes their ids into the file that the prompt names, then does as told."""
    plain = subprocess.Popen(["sleep", "600"])
    session = subprocess.Popen(["sleep", "600"], start_new_session=True)
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    pids = [plain.pid, session.pid, int(daemon.stdout.readline()), os.getpid()]
    Path(prompts[0] + ".part").write_text(" ".join(map(str, pids)))
    Path(prompts[0] + ".part").rename(prompts[0])
    if completions[0] == "die":
        os._exit(7)
    if completions[0] == "hang":
        time.sleep(3600)
    return [1.0] * len(completions)


def terminates(completions: list[str], **kwargs: Any) -> list[float]:
    """Ends a program, and a fork of itself, as programs are ended: politely. Returns whether SIGTERM ended them."""
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    forked = os.fork()
    if forked == 0:
        while True:
            time.sleep(600)
    os.kill(forked, signal.SIGTERM)
    ended = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
    return [float(code == -signal.SIGTERM) for code in (program.wait(), ended)]


def ill_mannered(completions: list[str], **kwargs: Any) -> list[float]:
    match completions[0]:
        case "exit":
            sys.exit(0)
        case "interrupt":
            raise KeyboardInterrupt
        case "fork and return":
            return [float(os.fork() != 0)] * len(completions)
        case "fork and raise":
            if os.fork() == 0:
                raise RuntimeError("in the fork")
        case "close files":
            os.closerange(0, 256)
        case "read":
            input()
        case "write":
            print("x" * 100_000)
            os.write(1, b"raw")
        case "kill the group":
            os.killpg(0, signal.SIGKILL)
        case "thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
    return [1.0] * len(completions)
