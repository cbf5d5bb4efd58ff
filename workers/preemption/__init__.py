"""Spot notices: the sources by which a worker learns that its machine is about to be taken away.

- A notice makes the worker leave within the time that the notice gives; a recommendation makes the worker rest, so that
  it leases nothing more. Nothing else here ends a worker: a source that does not answer is asked again.
- A source reports the present state and is polled until the worker leaves, so a notice that comes early is not missed.
"""

from echo_queue.config import Preemption
from workers.preemption import signals
from workers.preemption.aws import Aws
from workers.preemption.azure import Azure
from workers.preemption.file import NoticeFile
from workers.preemption.gcp import Gcp
from workers.preemption.notice_source import NoticeSource
from workers.preemption.notice_watcher import NoticeWatcher
from workers.shutdown import Shutdown

__all__ = ["source", "watch"]


def watch(config: Preemption, shutdown: Shutdown) -> None:
    """Starts a daemon thread that passes each notice on to `shutdown`. Call it in the main thread."""
    if config.watch == "signal":
        signals.watch(shutdown)
    elif config.watch != "none":
        NoticeWatcher(source(config), shutdown, config.poll_s).start()


def source(config: Preemption) -> NoticeSource:
    """Returns the source that `config.watch` names: a cloud's metadata server, or a file."""
    match config.watch:
        case "aws":
            return Aws(config.endpoint or Aws.ENDPOINT)
        case "gcp":
            return Gcp(config.endpoint or Gcp.ENDPOINT)
        case "azure":
            return Azure(config.endpoint or Azure.ENDPOINT, acknowledge=config.acknowledge)
        case _:
            assert config.file is not None, "the configuration names a file to watch"
            return NoticeFile(config.file)
