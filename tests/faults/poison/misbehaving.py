"""A reward function and an interactive environment that do as the prompt's column `poison` says.

The storm copies this file into the run's directory: it is a user's own module, and imports nothing of the project.
"""

import os
import signal
import subprocess
import sys
import threading
import time

FOREVER_S = 100_000
ANSWER_BYTES = 10_000_000


def reward(prompts, completions, poison, **columns):
    misbehave(poison[0])
    return [len(set(str(completion))) / 100 for completion in completions]


class Environment:
    def start(self, prompt, columns, seed):
        return Session(columns["poison"])


class Session:
    """Answers the first turns, and then gives the reward; `at the limit` never ends by itself."""

    def __init__(self, poison):
        self._poison = poison
        self._turns = 0

    def reply(self, text):
        misbehave(self._poison)
        self._turns += 1
        if self._poison == "at the limit":
            return "and"
        if self._poison == "a long answer":
            return "7 " * (ANSWER_BYTES // 2)
        if self._poison == "no answer":
            return ""
        return "+ 1" if self._turns < 2 else len(set(text)) / 100

    def unfinished(self):
        return 0.25


def misbehave(poison):  # noqa: PLR0912
    match poison:
        case "raises":
            raise ValueError("poison: raises")
        case "exits politely":
            sys.exit("poison: exits politely")
        case "interrupts":
            raise KeyboardInterrupt("poison: interrupts")
        case "exits":
            os._exit(3)
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hangs":
            time.sleep(FOREVER_S)
        case "hangs and ignores signals":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(FOREVER_S)
        case "forks":
            if os.fork():
                raise ValueError("poison: forks")
            # The child goes on as if it were the environment itself.
        case "prints":
            print("poison " * 100_000)
            os.write(1, b"\x00\xff" * 10_000)
            raise ValueError("poison: prints")
        case "closes its files":
            os.closerange(0, 256)
        case "leaves processes":
            subprocess.Popen(["sleep", str(FOREVER_S)], start_new_session=True)
            subprocess.Popen(["sh", "-c", f"trap '' TERM HUP; (sleep {FOREVER_S} &) ; sleep {FOREVER_S} &"])
            raise ValueError("poison: leaves processes")
        case "leaves processes and hangs":
            subprocess.Popen(["sleep", str(FOREVER_S)], start_new_session=True)
            subprocess.run(["sleep", str(FOREVER_S)], check=False)
        case "leaves threads":
            threading.Thread(target=time.sleep, args=[FOREVER_S]).start()
            raise ValueError("poison: leaves threads")
