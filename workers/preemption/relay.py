"""`python -m workers.preemption.relay CONFIG FILE` writes what a cloud says of this machine to a file, until SIGTERM.

Workers in containers watch that file (`rollout.preemption.watch = "file"`), and so need no access to the metadata
server, where the credentials of the machine lie as well. The file states the present: the seconds that are left after a
notice, the word `rest` after a recommendation, and without either there is no file.
"""

import argparse
import logging
import sys
import threading
from pathlib import Path

from echo_queue import failpoints
from echo_queue.atomic_file import write_atomically
from echo_queue.config.loading import load
from echo_queue.errors import ConfigError, EchoQueueError, Problem
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.signals import set_on_signals
from echo_queue.launch.streams import always_writable
from workers import preemption
from workers.preemption.notice_source import Notice, NoticeSource, NoticeSourceAway, Recommendation

log = logging.getLogger(__name__)
CLOUDS = ("aws", "gcp", "azure")


def main() -> int:
    always_writable()
    parser = argparse.ArgumentParser(description="Writes the spot notices of this machine to a file.")
    parser.add_argument("config", type=Path, help="the run's TOML file; rollout.preemption names the cloud")
    parser.add_argument("file", type=Path, help="the file that the workers of this machine watch")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    stop = threading.Event()
    set_on_signals(stop)
    try:
        settings = load(arguments.config).rollout.preemption
        if settings.watch not in CLOUDS:
            what = f'is "{settings.watch}", from which there is nothing to relay'
            raise ConfigError(Problem("rollout.preemption.watch", what, f"name a cloud: {', '.join(CLOUDS)}"))
        relay(preemption.source(settings), arguments.file, stop, settings.poll_s)
    except EchoQueueError as error:
        print_problems(error.problems)
        return 2
    return 0


def relay(source: NoticeSource, file: Path, stop: threading.Event, poll_s: float) -> None:
    """Keeps `file` true until `stop` is set. A source that is away changes nothing, and is logged once."""
    warned = False
    while not stop.is_set():
        try:
            state(file, source.poll())
        except NoticeSourceAway as error:
            if not warned:
                log.warning("spot notices cannot be received; their source is polled again: %s", error)
            warned = True
        stop.wait(poll_s)


def state(file: Path, notice: Notice | Recommendation | None) -> None:
    """Makes `file` say this notice, as `NoticeFile` reads it."""
    match notice:
        case None:
            failpoints.step("remove notice", lambda: file.unlink(missing_ok=True))
        case Recommendation():
            write_atomically(file, b"rest\n", "notice")
        case Notice(within_s=within_s):
            write_atomically(file, b"" if within_s is None else f"{within_s:.0f}\n".encode(), "notice")


if __name__ == "__main__":
    sys.exit(main())
