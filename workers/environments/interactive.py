"""A user's own interactive environment: a class whose objects have `start` (`InteractiveEnvironment`)."""

from collections.abc import Mapping
from typing import Any

from echo_queue.errors import ConfigError, Problem
from workers.environments.protocol import InteractiveEnvironment
from workers.environments.reference import WHERE, resolve


def make(reference: str, options: Mapping[str, Any]) -> InteractiveEnvironment:
    """Makes the object of class `reference` with `options`. Raises `ConfigError` if it has no `start`."""
    made: InteractiveEnvironment = resolve(reference)(**options)
    if not callable(getattr(made, "start", None)):
        what = f"{reference} makes a {type(made).__name__}, which has no start(prompt, columns, seed)"
        raise ConfigError(Problem(WHERE, what, "see docs/environments.md"))
    return made
