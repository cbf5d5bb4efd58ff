"""A real queue, real processes as machines, and controllers that a test makes decide and die."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from echo_queue.capacity.fleet_file import Fleet
from echo_queue.fleet.controller import Controller
from echo_queue.fleet.drivers import LocalDriver
from echo_queue.fleet.turn import ControllerTurn
from echo_queue.queue import FleetQueue, Monitor, RunRules, UpdateRecord
from echo_queue.records import Version
from echo_queue.reporting.metrics import UpdateMetrics, line_of
from tests.queue.clients import Clients
from tests.waiting import wait_until

ASSUMED = {"why": "a test"}
RULES = RunRules(s=8, batch=2, pace=False)
ANSWER_S = 60.0
"""Redis is given so long for an answer that it is not away where the machine is busy."""
GROUPS_PER_S = 1.0
"""The supply of one machine of each pool."""


def fleet_of(prices: Mapping[str, float], **controller: Any) -> Fleet:
    """A fleet file with pools of machines that make one group per second, at these prices."""
    return Fleet.model_validate({"format": 1, "name": "test", **tables_of(prices, **controller)})


def tables_of(prices: Mapping[str, float], **controller: Any) -> dict[str, dict[str, Any]]:
    """The tables of that file."""

    def assumed(value: float) -> dict[str, Any]:
        return {"assumed": value, **ASSUMED}

    def price(usd: float) -> dict[str, Any]:
        return {"usd_per_hour": usd, "on": "2026-11-23", "source": "a test"}

    def pool(usd: float) -> dict[str, Any]:
        engine = {"tokens_per_s": {"100": assumed(100 * GROUPS_PER_S)}, "samples_at_once": 1}
        place = {"gpu": "none", "cloud": "here", "region": "here", "max_machines": 20, "price": price(usd)}
        times = {"interruptions_per_hour": assumed(0), "boot_s": assumed(5), "link_gbit": assumed(1000)}
        return {**engine, **place, **times}

    return {
        "run": {"s": RULES.s, "groups_per_update": RULES.batch, "group_size": 1, "accepted": assumed(1)},
        "lengths": {"mean_tokens": assumed(100), "spread": assumed(0), "most_tokens": 100},
        "learner": {"gpus": 1, "price": price(1.0), "t_train_s": assumed(1), "link_gbit": assumed(1000)},
        "weights": {"parameters": 1000, "change": assumed(0.01)},
        "pools": {name: pool(usd) for name, usd in prices.items()},
        "controller": {"calm_s": 0, "measure_s": 1000, "rest_s": 60, "leave_s": 60, **controller},
    }


class FleetHarness:
    """A run whose learner takes `t_train_s` for each update of two groups, and machines below `folder`."""

    def __init__(self, queue: Clients, url: str, folder: Path) -> None:
        self.queue = queue
        self.folder = folder
        self.journal = folder / "journal"
        self._url = url
        self._updates = 0
        folder.mkdir(exist_ok=True)
        queue.configure(RULES)
        self.lineage = queue.resume().lineage
        self.driver = self.new_driver()

    def new_driver(self) -> LocalDriver:
        program = (sys.executable, "-m", "tests.fleet.machine_process", self._url, self.queue.run)
        journal = str(self.journal)
        return LocalDriver(self.folder / "machines", lambda name, pool: (*program, name, pool, journal), grace_s=5.0)

    def controller(
        self, fleet: Fleet, driver: Any = None, *, name: str = "", act: bool = True, as_json: bool = False
    ) -> Controller:
        caller = self.queue.caller.within(ANSWER_S)
        queue, monitor = FleetQueue(caller, name), Monitor(caller)
        return Controller(fleet, queue, monitor, driver or self.driver, act=act, as_json=as_json)

    def trains(self, t_train_s: float, wait_s: float = 0.0) -> None:
        """The learner makes as many updates as a controller looks at, each of that length."""
        now_s = self.queue.client.time()[0]
        for _ in range(16):
            self._updates += 1
            metrics = _metrics(now_s, self._updates, t_train_s, wait_s)
            self.queue.record(
                self.lineage, [UpdateRecord(Version(self.lineage, self._updates), "0", "p/0/0", line_of(metrics))]
            )
        self.queue.reclaim()
        self.queue.advance(self.lineage, self._updates, 0, 1.0)

    def until(self, controller: Controller, true: Callable[[ControllerTurn], bool], what: str) -> ControllerTurn:
        """Lets the controller take turns until one of them is like that."""
        last: list[ControllerTurn | None] = [None]

        def comes() -> bool:
            self.queue.reclaim()
            last[0] = controller.turn()
            return last[0] is not None and true(last[0])

        wait_until(comes, what, told=lambda: f"{last[0]}\n{self.written()}")
        assert last[0] is not None
        return last[0]

    @property
    def counts(self) -> Mapping[str, int]:
        return Counter(machine.pool for machine in self.driver.machines())

    def written(self) -> list[str]:
        """Returns the lines of the journal."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def end(self) -> None:
        def all_gone() -> bool:
            self.driver.end([one.name for one in self.driver.machines()])
            return not self.driver.machines()

        wait_until(all_gone, "the end of all machines")


def _metrics(now_s: float, version: int, train_s: float, wait_s: float) -> UpdateMetrics:
    return UpdateMetrics(
        time_s=now_s, lineage=1, version=version, reward_mean=0.0, reward_std=0.0, groups=2, samples=2, tokens=200,
        lags={}, zero_variance_groups=0, loss=0.0, grad_norm=0.0, clip_fraction=0.0, kl_behaviour=0.0, entropy=0.0,
        lr=0.0, wait_s=wait_s, train_s=train_s, save_s=0.0, window=1.0, depths={}, sent_back=0,
    )  # fmt: skip
