"""Tells apart, once they are called, what plain functions and coroutines return."""

import inspect
import types
from collections.abc import Generator
from typing import Any


async def settled(value: Any) -> Any:
    """Returns a value, or what an awaitable gives; the latter is begun only in an event loop (`child.Server`)."""
    if not inspect.isawaitable(value):
        return value
    await in_event_loop()
    return await value


@types.coroutine
def in_event_loop() -> Generator[None, None, None]:
    """Pauses a coroutine that was begun by hand, so that a loop goes on with it; in a loop, for one of its rounds."""
    yield
