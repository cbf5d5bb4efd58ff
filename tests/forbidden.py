"""A folder that the user of this process may not enter."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def forbidden(folder: Path) -> Iterator[None]:
    """Takes all rights to `folder` away; root, who needs none, is nobody meanwhile. Import what you need before."""
    before = folder.stat().st_mode
    folder.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        folder.chmod(before)
