"""Controllers in turns that start, dismiss and end machines: whatever they die at or hear no answer to, each is started
once, and the right ones end."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from echo_queue import failpoints
from echo_queue.errors import ServiceError
from echo_queue.fleet.controller import Controller
from echo_queue.fleet.drivers import DriverError
from echo_queue.queue import Heartbeat
from echo_queue.records import Version
from tests.fleet.fleet_harness import FleetHarness, fleet_of
from tests.fleet.places.place import Place
from tests.fleet.test_drivers import PLACES
from tests.killer import Killed, Killer
from tests.queue.clients import Clients
from tests.waiting import wait_until

TURNS = 3
"""Turns of a dismissal: its workers are told to rest, to leave, and the machine is ended."""
FLEET = fleet_of({"spot": 1.0}, rest_s=0, leave_s=0.001, every_s=600)
"""A controller leads so long after each turn that it finishes a turn on the busiest machine."""


class Refuser(Killer):
    """Refuses the `steps`-th step before it is taken, as a service that is away or throttles does."""

    def before(self, step: str, about: object) -> None:
        super().after(step, about, None)

    def after(self, step: str, about: object, answer: object) -> None:
        pass


@dataclass
class TroubledFleet:
    """A run whose fleet has too few machines, or too many, and whose controllers meet a trouble."""

    harness: FleetHarness
    place: Place

    @classmethod
    def wanted(cls, harness: FleetHarness, place: Place) -> Self:
        """Three machines are wanted, and there is none."""
        harness.queue.client.delete(harness.queue.keys.fleet)
        harness.trains(1.0)
        return cls(harness, place)

    @classmethod
    def begun(cls, harness: FleetHarness, place: Place) -> Self:
        """Three machines serve, and one has become enough."""
        surplus = cls.wanted(harness, place)
        assert surplus.controller("first").turn()
        place.until_up(3)
        for one in place.driver().machines():
            said = Heartbeat("none", Version(0, 0), "generating", 1.0, 1.0, 1, pool=one.pool, machine=one.known_as)
            harness.queue.heartbeat(one.known_as, said, every_s=60.0)
        harness.trains(4.0)
        surplus.depose()
        return surplus

    def controller(self, name: str) -> Controller:
        return self.harness.controller(FLEET, self.place.driver(), name=name)

    def depose(self) -> None:
        """Ends the time for which the controller that leads may lead."""
        self.harness.queue.client.hset(self.harness.queue.keys.fleet, "until_ms", 0)

    def is_started(self, controller: Controller, after: str) -> None:
        """Three machines come up in all."""

        def three_are_up() -> bool:
            turn = controller.turn()
            return turn is not None and (self.place.running(), len(self.place.listed())) == (3, 3)

        wait_until(three_are_up, f"three machines, {after}", told=lambda: str(self.place.listed()))
        assert controller.turn()
        assert (self.place.running(), self.place.ever()) == (3, 3), after

    def is_ended(self, controller: Controller, after: str) -> None:
        """The controller ends two machines in all, and no third one was started in their place, or ended with them."""

        def two_are_gone() -> bool:
            assert controller.turn()
            return len(self.place.listed()) == 1

        wait_until(two_are_gone, f"the end of two, {after}", told=lambda: str(self.place.listed()))
        assert controller.turn()
        assert (self.place.running(), self.place.ever()) == (1, 3), after


TROUBLES: dict[str, Callable[[int], Killer]] = {
    "death": Killer,
    "lost answer": partial(Killer, death=DriverError),
    "refusal": partial(Refuser, death=ServiceError),
}


@pytest.fixture
def quiet() -> Iterator[None]:
    yield
    failpoints.observer = None


CASES = [(kind, trouble) for kind in ("local", "kubernetes", "aws") for trouble in TROUBLES]
OFTEN = (("local", "death"), ("local", "refusal"))
ELSE = pytest.mark.proof(kind="troubles of a controller", share=0.05)
TIERS = [pytest.param(*case, marks=pytest.mark.slow if case in OFTEN else ELSE) for case in CASES]


@pytest.mark.parametrize(("kind", "trouble"), TIERS)
def test_what_is_missing_is_started_once(kind: str, trouble: str, queue: Clients, tmp_path: Path, quiet: None) -> None:
    """The same troubles, in turns that start three machines."""
    struck = ["nothing"]
    while struck[-1]:
        number = len(struck)
        with PLACES[kind].opened(tmp_path / f"place-{number}") as place:
            shortage = TroubledFleet.wanted(FleetHarness(queue, "", tmp_path / f"fleet-{number}"), place)
            controller = shortage.controller("c1")
            failpoints.observer = observer = TROUBLES[trouble](number)
            with suppress(Killed):
                for _ in range(TURNS):
                    controller.turn()
            failpoints.observer = None
            struck.append(observer.struck)
            if trouble == "death":
                shortage.depose()
                controller = shortage.controller("c2")
            shortage.is_started(controller, f"after a {trouble} at {struck[-1]}")
    assert {"lead", "plan", "start machine"} <= set(struck)


@pytest.mark.parametrize(("kind", "trouble"), TIERS)
def test_the_dismissed_machines_end_once_and_no_other(
    kind: str, trouble: str, queue: Clients, tmp_path: Path, quiet: None
) -> None:
    """A death leaves the rest to a successor. After a lost answer or a refusal, of Redis or the place, it goes on."""
    struck = ["nothing"]
    while struck[-1]:
        number = len(struck)
        with PLACES[kind].opened(tmp_path / f"place-{number}") as place:
            surplus = TroubledFleet.begun(FleetHarness(queue, "", tmp_path / f"fleet-{number}"), place)
            controller = surplus.controller("c1")
            failpoints.observer = observer = TROUBLES[trouble](number)
            with suppress(Killed):
                for _ in range(TURNS):
                    controller.turn()
            failpoints.observer = None
            struck.append(observer.struck)
            if trouble == "death":
                surplus.depose()
                controller = surplus.controller("c2")
            surplus.is_ended(controller, f"after a {trouble} at {struck[-1]}")
    assert {"lead", "plan", "order", "end machine"} <= set(struck)
