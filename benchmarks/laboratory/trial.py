"""A laboratory with its servers running, and one broadcast in it: all nodes get the order at once, and are timed.

Each broadcast has its own run, random bytes, processes and folders, so nothing of an earlier one helps it.
"""

import itertools
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.laboratory import machine, origin, stored_route
from benchmarks.laboratory.figures import Arrival, Outcome
from benchmarks.laboratory.goodput import goodput
from benchmarks.laboratory.network import Network
from benchmarks.laboratory.processes import LEARNER_NODE, Node
from benchmarks.laboratory.stored_route import StoredRoute
from echo_queue.queue import Caller, Operator, RunRules

ORIGIN, LEARNER = "origin", "learner"
READY_S = 30.0
DIGESTS_S = 60.0
SPARE_S = 60.0
CHUNK_DEADLINE_S = 5.0
"""The time that a silent peer costs; the product's own default."""

Nodes = Mapping[str, Node]
Event = Callable[[str, Nodes], Collection[str]]
"""A function that acts while the nodes of a run fetch, and returns the nodes that are no longer awaited."""


def nothing(run: str, nodes: Nodes) -> Collection[str]:
    return ()


@dataclass(frozen=True)
class Plan:
    """The nodes of a run. `special`: settings of some nodes that differ from the usual. `first`: the node that gets the
    order before all others."""

    names: tuple[str, ...]
    source: str = "peers"
    special: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    first: str = ""
    event: Event = nothing


class Laboratory:
    """Broadcasts `size` bytes to at most `most` nodes n1, n2, … All links, the learner's too, have `mbit` Mbit/s."""

    def __init__(self, network: Network, mbit: float, most: int, size: int, chunk_bytes: int) -> None:
        self.network, self.mbit, self.size, self.chunk_bytes = network, mbit, size, chunk_bytes
        self.names = tuple(f"n{number}" for number in range(1, most + 1))
        for name in (ORIGIN, LEARNER, *self.names):
            network.add(name, mbit)
        self.objects = network.directory / "objects"
        self.goodput = 0.0
        self._runs = itertools.count()

    def calibrate(self, seconds: float) -> list[float]:
        """Measures the bound's B on one hop; returns the rate of each hop in a chain of all nodes, all at once."""
        self.goodput = goodput(self.network, [(ORIGIN, self.names[0])], seconds)[0]
        return goodput(self.network, list(itertools.pairwise((ORIGIN, *self.names))), seconds)

    def serve(self) -> None:
        self.objects.mkdir()
        origin.serve_store(self.network, ORIGIN, self.objects)
        origin.serve_plain(self.network, ORIGIN, self.objects)
        self.redis = origin.serve_redis(self.network, ORIGIN)
        self._loader = Node(
            ORIGIN, self.network.directory, {"origin": self.network.address(ORIGIN)}, stored_route.MODULE
        )
        self._loader.await_event("ready", READY_S)

    @property
    def bound_s(self) -> float:
        """The bound F/B: no broadcast can be faster."""
        return self.bound_of(self.size)

    def bound_of(self, size: int) -> float:
        """Returns the bound in seconds for another number of bytes than the laboratory's."""
        return size / self.goodput

    def new_run(self) -> str:
        """Configures a new run in the queue and returns its name."""
        run = f"run{next(self._runs)}"
        with origin.client(self.redis) as redis:
            Operator(Caller(redis, run)).configure(RunRules(s=1, batch=1))
        return run

    def broadcast(self, plan: Plan) -> Outcome:
        run = self.new_run()
        with self.nodes(run, plan) as nodes:
            return self.fetch(self.upload(run), nodes, plan)

    def upload(self, run: str, number: int = 1, share: float = 1.0) -> StoredRoute:
        """Stores a version of that share of the laboratory's usual bytes."""
        return stored_route.upload(self._loader, run, number, int(share * self.size), self.chunk_bytes)

    @contextmanager
    def nodes(self, run: str, plan: Plan) -> Iterator[Nodes]:
        """Starts the nodes of a plan and yields them once they are ready; in the end kills them and removes the run."""
        folder = self.network.directory / run
        folder.mkdir()
        nodes: dict[str, Node] = {}
        try:
            for name in plan.names:
                nodes[name] = Node(name, folder, self._spec(run, name, plan, folder))
            for node in nodes.values():
                node.await_event("ready", READY_S)
            yield nodes
        finally:
            for node in nodes.values():
                node.kill()
            shutil.rmtree(folder)
            shutil.rmtree(self.objects / origin.BUCKET / run, ignore_errors=True)

    @contextmanager
    def weight_publisher(self, run: str, place: str = ORIGIN, **more: Any) -> Iterator[tuple[Node, str]]:
        """Starts a learner node at `place`, with a model of the laboratory's bytes; yields it and its public key."""
        folder = self.network.directory / f"{run}.learner"
        folder.mkdir()
        spec = {"run": run, "origin": self.network.address(ORIGIN), "elements": self.size // 2}
        weight_publisher = Node(place, folder, spec | more, LEARNER_NODE)
        try:
            yield weight_publisher, weight_publisher.await_event("ready", READY_S).figures["public_key"]
        finally:
            weight_publisher.kill()
            shutil.rmtree(folder)

    def fetch(self, stored: StoredRoute, nodes: Nodes, plan: Plan) -> Outcome:
        """Orders all of `nodes` to fetch a route, and waits for those that are not lost."""
        order = stored.route.encode().decode()
        if plan.first:
            nodes[plan.first].order("fetch", route=order)
            nodes[plan.first].await_event("begun", READY_S)
        sent, began = self.network.sent_bytes(ORIGIN), machine.now()
        for name, node in nodes.items():
            if name != plan.first:
                node.order("fetch", route=order)
        lost = plan.event(stored.route.run, nodes)
        deadline_s = SPARE_S + 2 * len(nodes) * self.bound_s
        awaited = [node for name, node in nodes.items() if name not in lost]
        whole = {node.name: node.await_event("whole", deadline_s) for node in awaited}
        busy, sent = machine.busy_share(began), self.network.sent_bytes(ORIGIN) - sent
        arrivals = []
        for node in awaited:
            event, found = whole[node.name], node.await_event("digests", DIGESTS_S).figures["digests"]
            wrong = sum(one != other for one, other in itertools.zip_longest(found, stored.digests))
            arrivals.append(Arrival(node.name, event.at_s - began.at_s, wrong=wrong, **event.figures))
        return Outcome(tuple(arrivals), sent, round(busy, 3))

    def _spec(self, run: str, name: str, plan: Plan, folder: Path) -> dict[str, Any]:
        usual = {
            "name": name,
            "source": plan.source,
            "run": run,
            "origin": self.network.address(ORIGIN),
            "address": self.network.address(name),
            "redis": str(self.redis),
            "folder": str(folder / name),
            "chunk_deadline_s": CHUNK_DEADLINE_S,
        }
        return usual | dict(plan.special.get(name, {}))
