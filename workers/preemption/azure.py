"""Azure: scheduled events of the instance metadata service, which tells each machine those of its whole set.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import atexit
import logging
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import ClassVar, NamedTuple

import orjson

from workers.preemption.metadata import Metadata
from workers.preemption.watcher import Away, Notice, seconds_until

log = logging.getLogger(__name__)

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
LONGEST_S = 900.0
"""No event is announced earlier."""


class Eviction(NamedTuple):
    event: str
    machines: list[str]
    within_s: float


class Azure:
    """`acknowledge`: as this process ends, Azure is told that it need not wait any longer."""

    ENDPOINT: ClassVar = "http://169.254.169.254"

    def __init__(self, endpoint: str, *, acknowledge: bool) -> None:
        self._server = Metadata(endpoint)
        self._acknowledges = acknowledge

    def look(self) -> Notice | None:
        announced = list(evictions(self._server.ask(EVENTS, HEADERS).json()))
        own = next((one for one in announced if self._name() in one.machines), None)
        if own is None:
            return None
        if self._acknowledges:
            atexit.register(self._acknowledge, own.event)
        return Notice(f"Azure evicts this machine (event {own.event})", own.within_s)

    def _name(self) -> str:
        return self._server.ask(NAME, HEADERS).body.decode("utf-8", "replace").strip().casefold()

    def _acknowledge(self, event: str) -> None:
        try:
            body = orjson.dumps({"StartRequests": [{"EventId": event}]})
            self._server.ask(EVENTS, HEADERS, method="POST", body=body)
        except Away as error:
            log.warning("event %s was not acknowledged: %s", event, error)


def evictions(document: object) -> Iterator[Eviction]:
    """Of the scheduled events; names of machines in lower case. Raises `Away`."""
    match document:
        case {"Events": list(events)}:
            for event in events:
                match event:
                    case {"EventType": "Preempt", "EventId": str(name), "Resources": list(machines)}:
                        within_s = _left(str(event.get("NotBefore") or ""))
                        yield Eviction(name, [str(machine).casefold() for machine in machines], within_s)
        case _:
            raise Away(f"{str(document)[:80]!r} are no scheduled events")


def _left(not_before: str) -> float:
    """Seconds; an event that has started has no time."""
    if not not_before:
        return 0.0
    try:
        return seconds_until(parsedate_to_datetime(not_before), LONGEST_S)
    except ValueError as error:
        raise Away(f"{not_before!r} is no time") from error
