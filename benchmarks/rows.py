"""The rows of a benchmark: each is told as soon as it is known, and the error of one takes no other with it."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def append(file: Path, row: object) -> None:
    """Appends a row to a file of JSON lines. It is on the disk when this returns.

    `row`: a mapping, or a dataclass.
    """
    import orjson

    append_line(file, orjson.dumps(row))


def append_line(file: Path, line: bytes) -> None:
    """Appends a line, which is on the disk when this returns."""
    with file.open("ab", buffering=0) as rows:
        rows.write(line + b"\n")
        os.fsync(rows.fileno())


class Rows:
    """Which rows are lost. `lost`: by row, its error."""

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}

    @contextmanager
    def row(self, name: str) -> Iterator[None]:
        """The block measures the row and prints it. An error is told as this row's, and what follows the block goes on.

        Raises what asks the process to end: an interrupt, and `SystemExit` with a number.
        """
        try:
            yield
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and not isinstance(error.code, str):
                raise
            self.lost[name] = str(error) or type(error).__name__
            traceback.print_exc()
            print(f"{name}: lost: {type(error).__name__}: {error}")
        finally:
            sys.stdout.flush()

    @property
    def promises(self) -> dict[str, bool]:
        """The promise that each lost row breaks. A promise of all rows together can be judged only without any."""
        return {f"{name} is measured": False for name in self.lost}
