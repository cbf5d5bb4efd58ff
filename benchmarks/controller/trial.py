"""One disturbance, live: a fleet that the controller has started serves, something happens, and the controller acts.

For a while after the disturbance the controller is paused: that is what a fleet without one is left with. Then it goes
on, and is judged by the end of its time.
"""

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.capacity.timed_learner import Pace, TimedLearner, timed
from benchmarks.controller import offers, paced_worker
from benchmarks.controller.liar import lying
from benchmarks.controller.market import Market
from benchmarks.controller.watch import Watch, watched
from benchmarks.fleet.plan import Plan, late_share
from benchmarks.fleet.run import Run, running
from benchmarks.fleet.trace import Trace
from echo_queue.fleet.controller import Controller
from echo_queue.fleet.drivers.local import Command
from echo_queue.queue import Caller, FleetQueue, Monitor, RunRules, UpdateRecord
from echo_queue.records import Version
from echo_queue.reporting.metrics import UpdateMetrics, line_of
from tests.waiting import wait_until
from tests.workers.worker_harness import tensors_of

DEADLINE_S, REDIS_S = 120.0, 5.0
STARVED_S = 240.0
"""The longest wait of the learner for its groups."""
HEARTBEAT_S = 0.5
LONGEST = 120
PROMPTS = 1_500
WARM_UP = 2
"""Updates that wait for the first groups, and that nobody is told of."""


@dataclass(frozen=True)
class Update:
    """An update that took `train_s` and ended at a time (monotonic seconds)."""

    ended_s: float
    train_s: float


@dataclass
class Trial:
    """A run with its learner, and the market where its machines are rented."""

    run: Run
    market: Market
    learner: TimedLearner
    plans: Mapping[str, Plan]
    updates: list[Update] = field(default_factory=list)
    learning: "Future[None]" = field(default_factory=Future)
    ended: threading.Event = field(default_factory=threading.Event)
    ends: ExitStack = field(default_factory=ExitStack)

    def serving(self) -> list[str]:
        """Returns the names of the machines that generate, those of the cheapest pool first."""
        pools = {one.name: one.pool for one in self.market.machines()}
        beats = {one.name for one in self.run.harness.status().workers if one.heartbeat and one.heartbeat.groups}
        return sorted(beats & set(pools), key=lambda name: (offers.USD[pools[name]], name))

    def lie(self, name: str) -> None:
        """Freezes a machine's worker, and makes another one claim in its name."""
        pool = next(one.pool for one in self.market.machines() if one.name == name)
        groups_per_s = offers.CONCURRENT / offers.STEPS / offers.STEP_S[pool]
        self.market.freeze(name)
        self.ends.enter_context(lying(self.run.harness.config, name, pool, groups_per_s, HEARTBEAT_S))

    def pause(self, *, paused: bool) -> None:
        """Makes the controller order nothing, or go on."""
        self.run.harness.queue.controller("a person").pause(paused=paused)

    def learn(self) -> None:
        """Makes updates until the end, and records each one as the learner does. Call it in a thread of its own."""
        while not self.ended.is_set():
            began_s, train_s = time.monotonic(), self.learner.pace.train_s
            self.learner.update(STARVED_S)
            ended_s = time.monotonic()
            self.updates.append(Update(ended_s, train_s))
            if len(self.updates) > WARM_UP:
                self._record(train_s, max(0.0, ended_s - began_s - train_s))

    def go_on(self, seconds: float) -> float:
        """Lets so much time pass, and returns the time at its end. Raises what has ended the learner, if it has."""
        if wait([self.learning], seconds).done:
            self.learning.result()
        return time.monotonic()

    def busy(self, from_s: float, until_s: float) -> float:
        """Returns the share of this time for which the learner trained."""
        spans = ((max(from_s, one.ended_s - one.train_s), min(until_s, one.ended_s)) for one in self.updates)
        return sum(max(0.0, ended_s - began_s) for began_s, ended_s in spans) / (until_s - from_s)

    @property
    def late_share(self) -> float:
        """The largest share of their time that a pool's engines lost because this machine's processors were busy."""
        return max(late_share(plan) for plan in self.plans.values())

    def _record(self, train_s: float, wait_s: float) -> None:
        harness, version = self.run.harness, self.learner.version
        line = line_of(_metrics(harness.queue.client.time()[0], version, train_s, wait_s))
        harness.queue.record(harness.lineage, [UpdateRecord(Version(harness.lineage, version), "", "p/0/0", line)])


@contextmanager
def begun(seed: int) -> Iterator[tuple[Trial, Watch]]:
    """Yields a trial whose machines serve and whose learner learns, and what is seen of it. Nothing of it is left."""
    with ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        trace = Trace(seed, offers.SAMPLES, LONGEST, prompt_spread=0.2, sample_spread=0.1).taking(offers.STEPS)
        trace.write(directory / "trace.json")
        plans = {pool: Plan(directory / "trace.json", directory / pool, step) for pool, step in offers.STEP_S.items()}
        for plan in plans.values():
            plan.counts.mkdir()
        run = ends.enter_context(running(directory, _settings()))
        harness = run.harness
        tensors = dict(tensors_of(Path(harness.config.base_model)))
        harness.rules = RunRules.of(harness.config)
        harness.learner_begins()  # with the rules of the file, which `Run` leaves out
        harness.publish(0, tensors)
        run.submit(PROMPTS)
        market = Market(directory / "machines", _command(harness.path, plans), offers.USD)
        ends.callback(market.close)
        pace = Pace(offers.TRAIN_S, 0.0, offers.KAPPA)
        trial = Trial(run, market, ends.enter_context(timed(run, pace, tensors)), plans)
        ends.enter_context(trial.ends)
        with watched(_controller(run, market), market) as watch:
            wait_until(lambda: len(trial.serving()) >= 3, "three machines that generate", DEADLINE_S)
            with ThreadPoolExecutor(1) as threads:
                trial.learning = threads.submit(trial.learn)
                try:
                    yield trial, watch
                finally:
                    trial.ended.set()
            trial.learning.result()


def _command(config: Path, plans: Mapping[str, Plan]) -> Command:
    return lambda name, pool: paced_worker.command(config, plans[pool], name)


def _controller(run: Run, market: Market) -> Controller:
    caller = Caller.connect(run.harness.config, "controller", REDIS_S)
    return Controller(offers.fleet_file(), FleetQueue(caller), Monitor(caller), market, act=True)


def _settings() -> dict[str, dict[str, Any]]:
    return {
        "model": {"max_new_tokens": LONGEST, "max_prompt_tokens": 64},
        "rollout": {
            "group_size": offers.SAMPLES,
            "concurrent_groups": offers.CONCURRENT,
            "workers": 1,
            "temperature": 1.0,
        },
        "learner": {"batch_groups": offers.BATCH},
        "staleness": {"s": offers.S, "kappa": offers.KAPPA},
        "queue": {"lease_s": 10.0, "stall_deadline_s": 300.0, "longest_first": False},
        "telemetry": {"heartbeat_s": HEARTBEAT_S},
    }


def _metrics(now_s: float, version: int, train_s: float, wait_s: float) -> UpdateMetrics:
    """Returns what the learner says of an update, as far as anything is known of it here."""
    return UpdateMetrics(
        time_s=now_s, lineage=1, version=version, reward_mean=0.0, reward_std=0.0, groups=offers.BATCH, samples=0,
        tokens=0, lags={}, zero_variance_groups=0, loss=0.0, grad_norm=0.0, clip_fraction=0.0, kl_behaviour=0.0,
        entropy=0.0, lr=0.0, wait_s=wait_s, train_s=train_s, save_s=0.0, window=0.0, depths={}, sent_back=0,
    )  # fmt: skip
