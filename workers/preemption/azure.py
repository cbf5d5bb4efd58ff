"""Azure: scheduled events of the instance metadata service, which reports the events of a whole set to each machine.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import atexit
import logging
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import ClassVar, NamedTuple

import orjson

from workers.preemption.metadata import MetadataServer
from workers.preemption.notice_source import Notice, NoticeSourceAway, seconds_until

log = logging.getLogger(__name__)

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
LONGEST_S = 900.0
"""Azure announces no event earlier than this."""


class Eviction(NamedTuple):
    """A scheduled preemption of some machines, by their names in lower case."""

    event: str
    machines: list[str]
    within_s: float


class Azure:
    """Polls Azure's scheduled events. `acknowledge`: when this process ends, it reports that Azure need not wait."""

    ENDPOINT: ClassVar = "http://169.254.169.254"

    def __init__(self, endpoint: str, *, acknowledge: bool) -> None:
        self._server = MetadataServer(endpoint)
        self._acknowledges = acknowledge

    def poll(self) -> Notice | None:
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
        except NoticeSourceAway as error:
            log.warning("event %s was not acknowledged: %s", event, error)


def evictions(document: object) -> Iterator[Eviction]:
    """Yields the preemptions among scheduled events. Raises `NoticeSourceAway` for a malformed document."""
    match document:
        case {"Events": list(events)}:
            for event in events:
                match event:
                    case {"EventType": "Preempt", "EventId": str(name), "Resources": list(machines)}:
                        within_s = _seconds_left(str(event.get("NotBefore") or ""))
                        yield Eviction(name, [str(machine).casefold() for machine in machines], within_s)
        case _:
            raise NoticeSourceAway(f"{str(document)[:80]!r} is not a list of scheduled events")


def _seconds_left(not_before: str) -> float:
    """Returns the seconds until an event, 0 for an event without a time, which has started."""
    if not not_before:
        return 0.0
    try:
        return seconds_until(parsedate_to_datetime(not_before), LONGEST_S)
    except ValueError as error:
        raise NoticeSourceAway(f"{not_before!r} is not a time") from error
