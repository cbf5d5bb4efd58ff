"""Errors that an item makes: they end what is done about that item, and never what is done about others."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from echo_queue.errors import EchoQueueError, PromptError
from echo_queue.records.group_codec import CodecError
from echo_queue.submission.shards import BadShard

T = TypeVar("T")


class UnknownSet(EchoQueueError):
    """A task is of an evaluation, or of a component, that this worker's configuration does not name."""


OF_ITEMS = (BadShard, CodecError, PromptError, UnknownSet)


def is_of_item(error: Exception) -> bool:
    """Returns whether an item has made the error, and not a service or the configuration, which would fail every task.

    Errors that nobody raised on purpose come from what the item holds, too: its text, its tokens or its columns.
    """
    return not isinstance(error, EchoQueueError) or isinstance(error, OF_ITEMS)


def at_once(act: Callable[[Sequence[T]], object], items: Sequence[T], failed: Callable[[T, Exception], object]) -> None:
    """Calls `act` with all items; one by one if one of them makes it raise, and `failed` with each that does.

    Raises any other error of `act`.
    """
    try:
        act(items)
    except Exception as error:
        if not is_of_item(error):
            raise
        if len(items) == 1:
            failed(items[0], error)
            return
        for item in items:
            at_once(act, [item], failed)
