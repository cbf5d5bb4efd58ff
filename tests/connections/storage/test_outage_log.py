"""An outage that lasts is told once, whichever threads meet it, and so is its end."""

import logging

import pytest

from echo_queue.connections.storage import outage_log
from echo_queue.connections.storage.outage_log import SAID_S, OutageLog


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(outage_log.__name__), "propagate", True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_that_lasts_is_told_once_with_the_time_that_is_left(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = OutageLog("the store", clock)
    for clock.now in (0.0, SAID_S - 1, SAID_S + 1, SAID_S + 2):
        outages.failed("connection refused", 0.0, 300 - clock.now)
    assert caplog.messages == ["the store has failed for 6 s and is tried again, for 294 s at most: connection refused"]
    clock.now = 60.0
    outages.answered()
    outages.answered()
    assert caplog.messages[1:] == ["the store works again after 60 s"]


def test_a_restart_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = OutageLog("the store", clock)
    for clock.now in (0.0, SAID_S - 1):
        outages.failed("connection refused", 0.0, 300.0)
    outages.answered()
    clock.now = 100.0
    outages.failed("connection refused", 100.0, 300.0)
    assert caplog.messages == [], "another outage, which has just begun"


def test_an_outage_that_everybody_gave_up_is_not_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = OutageLog("the store", clock)
    outages.failed("connection refused", 0.0, 1.0)
    clock.now = 900.0
    outages.failed("connection refused", 899.0, 300.0)
    assert caplog.messages == []


def test_a_server_that_hangs_is_told_of_at_its_first_timeout(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    clock.now = 30.0
    OutageLog("the store", clock).failed("read timeout", 0.0, 270.0)
    assert caplog.messages == ["the store has failed for 30 s and is tried again, for 270 s at most: read timeout"]


def test_a_request_that_fails_while_others_are_answered_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = OutageLog("the store", clock)
    for clock.now in range(1, 40):
        outages.answered()
        outages.failed("connection reset", 0.0, 300.0)
    assert caplog.messages == []
