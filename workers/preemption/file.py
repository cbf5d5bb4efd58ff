"""A file that says it, for whatever else knows: an agent on the machine, a node drainer, a person."""

from pathlib import Path

from workers.preemption.watcher import Away, Notice, Warned


class File:
    """While `path` exists, the worker is to leave: within the seconds that it holds, if it holds a number.

    With the word `rest` in it, the worker leases nothing more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self) -> Notice | Warned | None:
        try:
            said = self._path.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Away(f"{self._path} cannot be read: {error.strerror}") from error
        return Warned(f"{self._path} says so") if said == "rest" else Notice(f"{self._path} is there", _seconds(said))


def _seconds(said: str) -> float | None:
    try:
        return max(float(said), 0.0)
    except ValueError:
        return None
