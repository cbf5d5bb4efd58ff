"""The choice of how deltas list what has changed (`weights.coding`), by what the last version took of link and cores.

`small` takes a quarter to almost half of the bytes off and needs about three times the processor time. Coding, uploads
and what workers do overlap, so it pays where the link is what a version waits for, and would still be with `small`.
What the learner sees is its own link and its own cores: workers are taken to be no worse off.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

log = logging.getLogger(__name__)

Word = Literal["fast", "small"]
SMALL_BYTES, SMALL_TIME = 0.73, 3.0
"""What `small` takes of the bytes and of the processor time of `fast` (docs/weights.md, "What a delta costs")."""
MARGIN = 2.0
"""`small` pays if the uploads of `fast` take this many times as long as its coding would. Cores have other work."""
LEAST_S = 1.0
"""Nobody waits for uploads that take less, and they tell how far and how busy a store is, not what a link carries."""


def chosen(coding: Word, uploading_s: float, coding_s: float, threads: int) -> Word:
    """Returns the coding for what follows deltas that were coded by `coding`.

    `uploading_s`: seconds in which one of their parts was on its way. `coding_s`: processor time of all threads.
    """
    was_small = coding == "small"
    fast_uploading_s = uploading_s / (SMALL_BYTES if was_small else 1.0)
    small_coding_s = coding_s * (1.0 if was_small else SMALL_TIME)
    return "small" if fast_uploading_s > max(LEAST_S, MARGIN * small_coding_s / threads) else "fast"


class DeltaCoding:
    """The coding of one rank's deltas, as `weights.coding` says. Any thread may call `timed` and `on_its_way`.

    `threads`: those that code pieces.
    """

    def __init__(self, key: Literal["auto", "fast", "small"], threads: int) -> None:
        self._auto, self._threads = key == "auto", threads
        self.word: Word = "fast" if key == "auto" else key
        self._lock = threading.Lock()
        self._coding_s = self._uploading_s = 0.0
        self._on_the_way, self._since_s = 0, 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the processor time of what this thread codes."""
        began_s = time.thread_time()
        yield
        with self._lock:
            self._coding_s += time.thread_time() - began_s

    @contextmanager
    def on_its_way(self) -> Iterator[None]:
        """Counts the time in which a part, or others beside it, are on their way."""
        with self._lock:
            if not self._on_the_way:
                self._since_s = time.monotonic()
            self._on_the_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._on_the_way -= 1
                if not self._on_the_way:
                    self._uploading_s += time.monotonic() - self._since_s

    def choose(self) -> None:
        """Chooses the next version's coding by what was counted since the last call. No other thread is at work."""
        if self._auto and self._uploading_s:
            before, self.word = self.word, chosen(self.word, self._uploading_s, self._coding_s, self._threads)
            if self.word != before:
                what = "deltas are coded %s from now on: uploads took %.2f s, and coding %.2f s of processors"
                log.info(what, self.word, self._uploading_s, self._coding_s)
        self._coding_s = self._uploading_s = 0.0
