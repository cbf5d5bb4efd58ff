"""The environments of the user's own modules, named `module:name` in the configuration."""

from collections.abc import Callable
from typing import Any

from echo_queue.config.named_function import named_function

WHERE = "environment.function"


def resolve(reference: str) -> Callable[..., Any]:
    """Imports the function or class of that name. Raises `ConfigError` if there is none on this machine."""
    return named_function(reference, WHERE, "worker")
