"""Files of what was measured, with one thing in each line: lengths of groups, and losses of machines."""

import math
from collections.abc import Callable
from pathlib import Path

from echo_queue.errors import ConfigError, Problem

Row = tuple[float, ...]


def read_lengths(path: Path) -> tuple[float, ...]:
    """Returns the lengths of groups in a file. Raises `ConfigError`."""
    return tuple(row[0] for row in _rows(path, "one number, above 0", lambda row: len(row) == 1 and row[0] > 0))


def read_losses(path: Path) -> list[tuple[float, int]]:
    """Returns seconds and machines of each loss in a file, in order of time. Raises `ConfigError`."""

    def fits(row: Row) -> bool:
        return len(row) == 2 and row[0] >= 0 and row[1] >= 1 and row[1] % 1 == 0

    return sorted((row[0], int(row[1])) for row in _rows(path, "seconds and a whole number of machines", fits))


def _rows(path: Path, form: str, fits: Callable[[Row], bool]) -> list[Row]:
    """Returns the numbers of each line, of which there is one at least."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error}", "name a text file")) from None
    rows: list[Row] = []
    for number, line in enumerate(lines or [""], 1):
        try:
            row = tuple(map(float, line.replace(",", " ").split()))
        except ValueError:
            row = ()
        if not all(map(math.isfinite, row)) or not fits(row):
            raise ConfigError(Problem(f"{path}:{number}", f"{line!r} is not {form}", "fix that line"))
        rows.append(row)
    return rows
