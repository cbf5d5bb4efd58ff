"""Functions and classes of the user's own modules, named `module:name` in the configuration."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from echo_queue.errors import ConfigError, Problem

WHERE = "environment.function"


def resolve(reference: str) -> Callable[..., Any]:
    """Imports the function or class of that name. Raises `ConfigError` if there is none on this machine."""
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        fix = "start the worker where the module can be imported, or set PYTHONPATH"
        raise ConfigError(Problem(WHERE, f"{reference}: {error}", fix)) from None
    except AttributeError:
        raise ConfigError(Problem(WHERE, f"{module} has no {name}", 'write "module:function"')) from None
    if not callable(found):
        what = f"{reference} is of type {type(found).__name__}, not a function"
        raise ConfigError(Problem(WHERE, what, "name a function"))
    function: Callable[..., Any] = found
    return function
