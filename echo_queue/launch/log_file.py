"""The log of a process that is started again and again: two files of bounded size, whatever the number of starts."""

from pathlib import Path

KEEP_BYTES = 8 << 20


def keep_short(log: Path) -> None:
    """Sets a log of more than `KEEP_BYTES` aside as `<name>.old`, in place of the one before. Nobody may write it."""
    if log.exists() and log.stat().st_size > KEEP_BYTES:
        log.replace(log.with_suffix(".old"))
