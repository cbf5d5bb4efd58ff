"""The processes of this machine, as /proc shows them."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Returns whether the process exists and has not ended; a zombie has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
