"""Redis and the object store of a run: embedded or external, connected to by role, checked before anything starts.

`serve` runs the embedded ones in a process of its own; `check` says all that is wrong with either kind.
"""

from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.errors import Problem


def serve(config: "Config", stop: Event | None = None) -> None:
    """Serves the run's embedded services until `stop` is set (default: until SIGTERM or Ctrl-C)."""
    # Here and below: the queue's rights name roles (`services.secrets`), so this package's own import stays light.
    from echo_queue.services.serving import serve

    serve(config, stop)


def check(config: "Config") -> list["Problem"]:
    """Everything wrong with both services, at once."""
    from echo_queue.services.inspection import check

    return check(config)
