"""A file that appears whole or not at all, whatever ends its writer: a temporary file beside it, then one rename.

Each file takes two steps (`echo_queue.failpoints`): "write …" and "rename …". Two processes that write the same file do
not disturb each other. A killed writer leaves its temporary file behind; no program reads those.
"""

import os
from pathlib import Path

from echo_queue import failpoints


def write_atomically(path: Path, data: bytes, what: str, mode: int = 0o666) -> None:
    """Makes `data` the content of `path`. `what` names the two steps; a new file gets `mode`, less the umask."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    failpoints.step(f"write {what}", lambda: _write(temporary, data, mode), path)
    failpoints.step(f"rename {what}", lambda: temporary.replace(path), path)


def _write(temporary: Path, data: bytes, mode: int) -> None:
    temporary.unlink(missing_ok=True)  # left by a process that had our number; it would keep its own mode
    temporary.touch(mode=mode, exist_ok=False)
    temporary.write_bytes(data)
