"""The processes of this machine, as the kernel tells of them in /proc (proc(5)). Linux alone."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ENDED = "ZX"
"""The states of a process that has ended, of which its parent has not heard yet."""


class ProcessStat(NamedTuple):
    """A process as /proc/PID/stat has it: the name it gave itself, the letter of its state, and its parent's id.

    `user_ticks`, `system_ticks`: the CPU time that it has used.
    """

    name: str
    state: str
    parent: int
    user_ticks: int
    system_ticks: int


def process_stat(pid: int) -> ProcessStat | None:
    """Returns what is told of the process; None if there is none."""
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = after.split()  # from the third field on
    name, state, parent = before.partition("(")[2], fields[0], int(fields[1])
    return ProcessStat(name, state, parent, int(fields[11]), int(fields[12]))


def processes_with(variable: str, value: str) -> Iterator[int]:
    """Yields the ids of the living processes that began with this environment variable, whoever started them."""
    wanted = f"{variable}={value}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def is_running(pid: int) -> bool:
    """Returns whether the process exists and has not ended; a zombie has ended."""
    return state_of(pid) not in ("", *ENDED)


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
