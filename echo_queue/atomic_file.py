"""A file that appears whole or not at all, whatever ends its writer: a draft beside it, then one rename.

Each file takes two steps (`echo_queue.failpoints`): its draft and its place. Two processes that write the same file do
not disturb each other. A killed writer leaves a draft behind; nobody reads drafts.
"""

import os
from pathlib import Path

from echo_queue import failpoints


def write_whole(path: Path, data: bytes, what: str, mode: int = 0o666) -> None:
    """`what` names the file's steps; `mode` is that of a new file, before the umask."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    failpoints.step(f"draft {what}", lambda: _write(draft, data, mode), path)
    failpoints.step(f"place {what}", lambda: draft.replace(path), path)


def _write(draft: Path, data: bytes, mode: int) -> None:
    draft.unlink(missing_ok=True)  # left by a process that had our number; it would keep its own mode
    draft.touch(mode=mode, exist_ok=False)
    draft.write_bytes(data)
