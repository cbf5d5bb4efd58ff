"""Functions and classes of the user's own modules, named `module:name` in the configuration."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from echo_queue.config.module_search import add_current_folder
from echo_queue.errors import ConfigError, Problem


def named_function(reference: str, where: str, role: str) -> Callable[..., Any]:
    """Imports the function or class of that name. Raises `ConfigError` if there is none on this machine.

    `where`: the key that names it. `role`: the role that needs it.
    """
    module, _, name = reference.partition(":")
    add_current_folder()
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        fix = f"start the {role} where {error.name} can be imported, install it, or set PYTHONPATH"
        raise ConfigError(Problem(where, f"{reference}: {error}", fix)) from None
    except AttributeError:
        raise ConfigError(Problem(where, f"{module} has no {name}", 'write "module:function"')) from None
    if not callable(found):
        what = f"{reference} is of type {type(found).__name__}, not a function"
        raise ConfigError(Problem(where, what, "name a function"))
    function: Callable[..., Any] = found
    return function
