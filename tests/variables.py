"""The environment variables of this process, which the roles that it starts or runs read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def variables_kept() -> Iterator[None]:
    """Restores, at the end of the block, the variables of its beginning."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
