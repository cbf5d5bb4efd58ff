"""Spot notices: who tells a worker that its machine is about to be taken away, and how.

- A notice makes the worker leave within the time that it gives; a recommendation makes it rest, so that it leases
  nothing more. Nothing here ever ends a worker otherwise: a source that cannot be asked is asked again.
- A source says what is so now, and is asked until the worker leaves: no notice is missed by coming too early.
"""

from echo_queue.config import Preemption
from workers.preemption import signals
from workers.preemption.aws import Aws
from workers.preemption.azure import Azure
from workers.preemption.file import File
from workers.preemption.gcp import Gcp
from workers.preemption.watcher import Source, Watcher
from workers.shutdown import Shutdown

__all__ = ["watch"]


def watch(config: Preemption, leaving: Shutdown) -> None:
    """Tells `leaving` of each notice from now on, in a daemon thread. Call it in the main thread."""
    if config.watch == "signal":
        signals.watch(leaving)
    elif config.watch != "none":
        Watcher(_source(config), leaving, config.poll_s).start()


def _source(config: Preemption) -> Source:
    match config.watch:
        case "aws":
            return Aws(config.endpoint or Aws.ENDPOINT)
        case "gcp":
            return Gcp(config.endpoint or Gcp.ENDPOINT)
        case "azure":
            return Azure(config.endpoint or Azure.ENDPOINT, acknowledge=config.acknowledge)
        case _:
            assert config.file is not None, "a file to watch is named"
            return File(config.file)
