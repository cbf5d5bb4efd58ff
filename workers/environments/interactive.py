"""A user's own interactive environment: a class whose objects have `start`, as `workers.environments.Interactive`."""

from collections.abc import Mapping
from typing import Any

from echo_queue.errors import ConfigError, Problem
from workers.environments import Interactive
from workers.environments.reference import WHERE, resolve


def make(reference: str, options: Mapping[str, Any]) -> Interactive:
    """`reference`'s object, made with `options`. Raises `ConfigError` if it is no environment."""
    made: Interactive = resolve(reference)(**options)
    if not callable(getattr(made, "start", None)):
        what = f"{reference} makes a {type(made).__name__}, which has no start(prompt, columns, seed)"
        raise ConfigError(Problem(WHERE, what, "see docs/environments.md"))
    return made
