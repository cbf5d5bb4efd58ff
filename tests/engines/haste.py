"""Whether the tests' servers are to end long samples soon: a file says so to all their processes."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "ECHO_QUEUE_TEST_HASTE"
FILE = Path(os.environ.get(VARIABLE) or f"{tempfile.gettempdir()}/echo-queue-test-haste-{os.getpid()}")


def wanted() -> bool:
    return FILE.exists()


@contextmanager
def haste() -> Iterator[None]:
    """Lets servers go on at full speed meanwhile."""
    FILE.touch()
    try:
        yield
    finally:
        FILE.unlink(missing_ok=True)
