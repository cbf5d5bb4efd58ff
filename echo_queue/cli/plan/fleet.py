"""`echo-queue fleet`: the controller of a run's fleet, and the word that pauses it."""

import logging
import sys
import threading
from datetime import date
from pathlib import Path

from echo_queue.capacity.loading import load_fleet
from echo_queue.capacity.plan.planning import with_prices
from echo_queue.cli.output import print_json
from echo_queue.config.loading import load
from echo_queue.fleet.opening import DEADLINE_S, opened
from echo_queue.launch.liveness import LivenessThread
from echo_queue.launch.signals import set_on_signals
from echo_queue.queue import Caller, FleetQueue, Monitor


def control(config: Path, fleet: Path, *, act: bool, as_json: bool) -> None:
    """Runs the controller until SIGTERM, Ctrl-C, or the end of the run and its machines. Raises `ConfigError`.

    `as_json`: each decision is a line of JSON.
    """
    settings, offers = load(config), with_prices(load_fleet(fleet, date.today()))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    controller = opened(settings, config, offers, act=act, as_json=as_json)
    if not act:
        print("without --act nothing is ordered: what follows is what would be", file=sys.stderr)
    stop = threading.Event()
    set_on_signals(stop)
    with LivenessThread("controller"):
        controller.run(stop)


def pause(config: Path, *, paused: bool) -> None:
    """Makes the leader of the run's fleet order nothing, or go on."""
    FleetQueue(Caller.connect(load(config), "controller", DEADLINE_S)).pause(paused=paused)


def show(config: Path, *, as_json: bool) -> None:
    """Prints who leads the fleet, and what it wants."""
    found = Monitor(Caller.connect(load(config), "monitor", DEADLINE_S)).fleet()
    if as_json:
        print_json(found)
        return
    leads = (
        f"{found.leader} leads for {found.leads_ms / 1000:.0f} s more" if found.leads_ms else "nobody leads the fleet"
    )
    print(f"{leads}{'; it is paused' if found.paused else ''}")
    wanted = ", ".join(f"{count} {pool}" for pool, count in found.wanted.items() if count)
    print(f"wanted: {wanted or 'no machine'}")
    if found.why:
        print(f"why: {found.why}")
