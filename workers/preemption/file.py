"""A file as the notice, for any other source: an agent on the machine, a node drainer, a person."""

from pathlib import Path

from workers.preemption.notice_source import Notice, NoticeSourceAway, Recommendation


class NoticeFile:
    """While `path` exists, the worker must leave, within the number of seconds that the file holds, if any.

    If the file holds the word `rest`, the worker only leases nothing more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def poll(self) -> Notice | Recommendation | None:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NoticeSourceAway(f"{self._path} cannot be read: {error.strerror}") from error
        if text == "rest":
            return Recommendation(f"{self._path} says rest")
        return Notice(f"{self._path} exists", _seconds(text))


def _seconds(text: str) -> float | None:
    try:
        return max(float(text), 0.0)
    except ValueError:
        return None
