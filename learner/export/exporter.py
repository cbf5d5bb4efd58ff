"""Exports versions while training goes on: every so many updates, and the best version by an evaluation.

- A thread starts `echo-queue export` as a process of its own, at low priority, one at a time. So training shares no
  memory and no interpreter with an export. One that fails is told and tried again; the run goes on in any case.
- What waits for its export is `needed`: retention keeps these versions in the store.
- Folders stand in `run.dir/exports` by version, and `best` there leads to the best one. What was exported is known from
  the folders alone, so a learner that is killed leaves nothing else to repair.
- A folder is then uploaded to `export.to`, likewise. A file beside it says that it was: one without is uploaded by the
  next learner.
"""

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from echo_queue import failpoints
from echo_queue.atomic_file import write_atomically
from echo_queue.checked_thread import CheckedThread
from echo_queue.config import Config, toml_text
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.launch.import_path import PYTHON
from echo_queue.models.exported import BEST, EXPORTS, exported_versions
from echo_queue.records import Version
from echo_queue.weights.destinations.bucket import BucketFolder

log = logging.getLogger(__name__)

ATTEMPTS = 3
PAUSE_S = 10.0
"""The pause before another attempt; an outage of Redis or the store is waited for by the export itself."""
DEADLINE_S = 3_600.0
"""One export takes no longer than that, and the end of a run waits no longer for those that are left."""
LOOK_S = 0.2
CLOSE_S = 5.0
NICENESS = 10


class Exporter(CheckedThread):
    """The exports of the lineage that begins at the version `begun`. Any thread may call its methods."""

    def __init__(self, config: Config, begun: Version) -> None:
        """Raises `ConfigError` for an address in `export.to` that cannot be; the bucket is not asked yet."""
        super().__init__("exporter")
        self._config, self._settings = config, config.export
        self.folder = config.run.dir / EXPORTS
        done = self._exports()
        self._newest = max((one.number for one in done if one.number <= begun.number), default=0)
        """The number of the version that was exported, or is to be, as one of every so many."""
        self._changed = threading.Condition()
        self._waiting: list[Version] = []
        if config.export.to:
            BucketFolder.of(self._address(begun), config)
            self._waiting += sorted(one for one in done if not self._uploaded(one))
        self._running: Version | None = None
        self._best: Version | None = None
        self._closed = threading.Event()

    @property
    def configured(self) -> bool:
        return bool(self._settings.every_updates or self._settings.best)

    @property
    def needed(self) -> Collection[Version]:
        """The versions that must stay in the store, since they are not exported yet."""
        with self._changed:
            return {*self._waiting, *filter(None, [self._running])}

    def published(self, version: Version) -> None:
        """Notes that a version is stored: it is exported if so many updates have been made since the last one."""
        every = self._settings.every_updates
        if every and version.number // every > self._newest // every:
            self._newest = version.number
            self._add(version)

    def found_best(self, result: EvaluationResult) -> None:
        """Notes the best version of an evaluation so far: it is exported if that is the one that counts."""
        if result.evaluation == self._settings.best:
            with self._changed:
                self._best = result.version
            self._add(result.version)

    def settle(self, stop: threading.Event, check: Callable[[], None]) -> None:
        """Waits until nothing is left to export, or `stop` is set. `check` may raise."""
        until_s = time.monotonic() + DEADLINE_S
        if self.needed:
            log.info("all is trained; versions are exported: %s", ", ".join(map(str, sorted(self.needed))))
        while self.needed and not stop.is_set() and time.monotonic() < until_s:
            check()
            with self._changed:
                self._changed.wait(LOOK_S)
        if (left := self.needed) and not stop.is_set():
            log.warning("not exported within %.0f s: %s", DEADLINE_S, ", ".join(map(str, sorted(left))))

    def close(self) -> None:
        """Ends the export under way, which leaves no half folder, and drops those that wait."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self.is_alive():
            self.join(CLOSE_S)

    def work(self) -> None:
        while (version := self._next()) is not None:
            folder = self.folder / str(version)
            if folder.is_dir() or self._exported(version, str(folder)):
                self._link_best(version)
                self._upload(version)
                self._remove_old()
            with self._changed:
                self._running = None
                self._changed.notify_all()

    def ended(self) -> None:
        with self._changed:
            self._waiting.clear()
            self._running = None
            self._changed.notify_all()

    def _add(self, version: Version) -> None:
        with self._changed:
            if version not in (*self._waiting, self._running) and not self._closed.is_set():
                self._waiting.append(version)
                self._changed.notify_all()

    def _next(self) -> Version | None:
        """Waits for a version to export. Returns None once it is closed."""
        with self._changed:
            while not self._waiting and not self._closed.is_set():
                self._changed.wait(LOOK_S)
            if self._closed.is_set():
                return None
            self._running = self._waiting.pop(0)
            return self._running

    def _address(self, version: Version) -> str:
        return f"{self._settings.to}/{version}"

    def _note(self, version: Version) -> Path:
        """Returns the file that says where a version's folder was uploaded."""
        return self.folder / f".{version}.uploaded"

    def _uploaded(self, version: Version) -> bool:
        note = self._note(version)
        return note.is_file() and note.read_text(encoding="utf-8") == self._address(version)

    def _upload(self, version: Version) -> None:
        """Uploads a version's folder to the bucket, if that is asked for and was not done yet."""
        address = self._address(version)
        if self._settings.to and not self._uploaded(version) and self._exported(version, address):
            failpoints.step("note upload", lambda: self._note(version).write_text(address, encoding="utf-8"), version)

    def _exported(self, version: Version, target: str) -> bool:
        """Exports a version, in several attempts if need be. Returns whether it is there."""
        for attempt in range(1, ATTEMPTS + 1):
            began_s = time.monotonic()
            if (why := self._failure(version, target)) is None:
                log.info("version %s is exported to %s, in %.1f s", version, target, time.monotonic() - began_s)
                return True
            if self._closed.is_set():
                return False
            log.warning(
                "version %s was not exported to %s, attempt %d of %d: %s", version, target, attempt, ATTEMPTS, why
            )
            if attempt < ATTEMPTS and self._closed.wait(PAUSE_S):
                return False
        return False

    def _failure(self, version: Version, target: str) -> str | None:
        """Runs one export. Returns why it failed; None if it did not."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            settings = self.folder / "run.toml"
            values = self._config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
            write_atomically(settings, toml_text.written(values).encode(), "export settings")
            words = (*PYTHON, "-m", "echo_queue", "export", str(settings), str(version), target, "--within-run")
            return failpoints.step("run export", lambda: self._run(words), version)
        except OSError as error:
            return str(error)

    def _run(self, words: Collection[str]) -> str | None:
        output = self.folder / "export.log"
        with output.open("wb") as log_file:
            process = subprocess.Popen([*words], stdout=log_file, stderr=log_file, stdin=subprocess.DEVNULL)
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
            until_s = time.monotonic() + DEADLINE_S
            while (code := process.poll()) is None:
                if self._closed.wait(LOOK_S) or time.monotonic() > until_s:
                    process.kill()
                    process.wait(CLOSE_S)
                    return f"it was ended after {DEADLINE_S:.0f} s"
        if code == 0:
            return None
        told = " ".join(output.read_text(encoding="utf-8", errors="replace").split())
        return told[-500:] or f"exit code {code}"

    def _exports(self) -> list[Version]:
        return [Version.parse(name) for name in exported_versions(self.folder)]

    def _link_best(self, version: Version) -> None:
        """Makes `best` lead to the version, if it is the best one."""
        if version == self._best:
            link = self.folder / f".{BEST}.tmp"
            link.unlink(missing_ok=True)
            failpoints.step("link best", lambda: link.symlink_to(str(version)))
            failpoints.step("rename best", lambda: link.replace(self.folder / BEST))

    def _remove_old(self) -> None:
        """Removes what is more than `export.keep`, oldest first; the best version and what waits for it stay."""
        best = self.folder / BEST
        standing = {Version.parse(best.readlink().name)} if best.is_symlink() else set()
        old = [one for one in self._exports() if one not in standing and one != self._best]
        for version in sorted(old)[: -self._settings.keep]:
            shutil.rmtree(self.folder / str(version), ignore_errors=True)
            self._note(version).unlink(missing_ok=True)
