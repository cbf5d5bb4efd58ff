"""The processes of this machine, as /proc shows them."""

from pathlib import Path

from echo_queue.launch.process_stat import process_stat
from echo_queue.launch.reap import start_time


def is_running(pid: int) -> bool:
    """Returns whether the process exists and has not ended; a zombie has ended."""
    return start_time(pid) is not None


def state_of(pid: int) -> str:
    """Returns the letter of the process's state, such as R, S or T (stopped); empty if it is gone."""
    stat = process_stat(pid)
    return stat.state if stat else ""


def children_of(pid: int) -> list[int]:
    """Returns the ids of a process's children that run, oldest first."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [child for child in map(int, listed) if is_running(child)]


def command_of(pid: int) -> list[str]:
    """Returns the words with which the process was started; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
