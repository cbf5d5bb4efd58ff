"""Threads beside a main loop, whose errors the loop raises."""

import threading
from abc import abstractmethod


class CheckedThread(threading.Thread):
    """A thread that does not hold up the end of its process. `check` raises the error that ended it, if any."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None

    @abstractmethod
    def work(self) -> None:
        """Does all that the thread is for, in the thread."""

    def ended(self) -> None:
        """Is called last in the thread, when its failure is known: wakes those who wait for its work."""

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error
        finally:
            self.ended()

    def check(self) -> None:
        """Raises the error that ended this thread, if any."""
        if self.failure is not None:
            raise self.failure
