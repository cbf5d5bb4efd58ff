"""Redis and the object store of a run: embedded or external, connected to by role, checked before any role starts.

`serve` runs the embedded ones in this process, `prepare` makes others ready, and `inspect` reports every problem with
either kind.
"""

from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role
    from echo_queue.connections.verdict import Verdict


def serve(
    config: "Config",
    stop: Event | None = None,
    once_ready: Callable[[], None] = lambda: None,
    before_end: Callable[[], None] = lambda: None,
) -> None:
    """Serves the run's embedded services until `stop` is set (default: until SIGTERM or Ctrl-C).

    `once_ready` is called once they answer, and `before_end` while they still do.
    """
    # Imported here and below, so that importing this package stays light.
    from echo_queue.launch.servers.serving import serve

    serve(config, stop, once_ready=once_ready, before_end=before_end)


def prepare(config: "Config") -> "Iterator[str]":
    """Makes servers of the user's own ready for the run, and yields what was done."""
    from echo_queue.launch.servers.serving import prepare

    return prepare(config)


def inspect(config: "Config", roles: "Sequence[Role] | None" = None) -> "Verdict":
    """Returns every problem with both services, as `roles` would meet them: those of a whole run if none are given."""
    from echo_queue.launch.servers.inspection import RUN, inspect

    return inspect(config, RUN if roles is None else roles)
