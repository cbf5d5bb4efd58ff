"""The experiments: a broadcast to some peers, plain, with a fault, in two regions, and to a worker that joins late.

Every series is the same broadcast `rounds` times, each time with its own run, processes and bytes.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.laboratory.figures import Late, Series, Uploaded, series, spread
from benchmarks.laboratory.origin import client
from benchmarks.laboratory.processes import Node
from benchmarks.laboratory.trial import LEARNER, ORIGIN, Event, Laboratory, Nodes, Plan
from echo_queue.errors import DeadlineError, Problem
from echo_queue.queue.keys import Keys

CHAIN_S = 10.0
HALF_S = 120.0
SLOW = 10
"""A slow peer has the rate of the others divided by this."""
REGIONS = ("east", "west")
MISSED = 8
"""The number of versions missed, which one delta spans."""
SERVING_S = PUBLISHED_S = 300.0
TOLD, ANNOUNCED = "uploaded, then told", "uploaded, announced"
UPLOADED_PART_BYTES = 4 << 20
"""Small parts: a model of 14 GB has some 200 parts of the usual size, and the laboratory's would have one or two."""
WARM_SHARE = 0.5
"""Share of the usual bytes that is enough to measure rates."""


def plain(lab: Laboratory, peers: int, rounds: int, source: str = "peers") -> Series:
    """Broadcasts without any fault. `source`: "peers", or a baseline: "store", "star"."""
    outcomes = [lab.broadcast(Plan(lab.names[:peers], source)) for _ in range(rounds)]
    what = {"peers": "peers", "store": "store only", "star": "star"}[source]
    return series(what, outcomes, lab.size, lab.bound_s)


def killed(lab: Laboratory, peers: int, rounds: int) -> Series:
    """Kills a relay, each time at another place of the chain, once it has half of the bytes."""
    return _struck(lab, peers, rounds, "relay killed at 50 %", Node.kill)


def frozen(lab: Laboratory, peers: int, rounds: int) -> Series:
    """Stops a relay at 50 % with its connections open, so that only a deadline reveals it."""
    return _struck(lab, peers, rounds, "relay frozen at 50 %", lambda node: os.kill(node.process.pid, signal.SIGSTOP))


def corrupting(lab: Laboratory, peers: int, rounds: int) -> Series:
    """Makes the first of the chain flip bits in the bytes that it passes on."""
    names = lab.names[:peers]
    plan = Plan(names, special={names[0]: {"corrupts": True}}, first=names[0])
    return series("corrupting peer", [lab.broadcast(plan) for _ in range(rounds)], lab.size, lab.bound_s)


def slow(lab: Laboratory, peers: int, rounds: int, known: bool) -> Series:
    """Gives the first worker that asks a tenth of the rate, up and down; the others' arrival counts.

    `known`: the same workers have fetched an earlier version, and so measured their rates.
    """
    names = lab.names[:peers]
    lab.network.shape(names[0], lab.mbit / SLOW, lab.mbit / SLOW)
    try:
        outcomes = []
        for _ in range(rounds):
            run, plan = lab.new_run(), Plan(names, first=names[0], event=lambda run, nodes: {names[0]})
            with lab.nodes(run, plan) as nodes:
                if known:
                    earlier = lab.upload(run, 0, WARM_SHARE)
                    lab.fetch(earlier, nodes, replace(plan, event=lambda run, nodes: ()))
                outcomes.append(lab.fetch(lab.upload(run), nodes, plan))
    finally:
        lab.network.shape(names[0], lab.mbit, lab.mbit)
    what = f"slow peer ({'known' if known else 'unknown'})"
    return series(what, outcomes, lab.size, lab.bound_s)


def regions(lab: Laboratory, peers: int, rounds: int) -> Series:
    """Puts half of the peers into each of two regions; the origin's link carries both. Bytes are printed per region."""
    names = lab.names[:peers]
    special = {name: {"region": REGIONS[place % 2]} for place, name in enumerate(names)}
    lab.network.shape(ORIGIN, 2 * lab.mbit, 2 * lab.mbit)
    try:
        outcomes = [lab.broadcast(Plan(names, special=special)) for _ in range(rounds)]
    finally:
        lab.network.shape(ORIGIN, lab.mbit, lab.mbit)
    each = [replace(outcome, origin_bytes=outcome.origin_bytes // len(REGIONS)) for outcome in outcomes]
    return series("two regions", each, lab.size, lab.bound_s)


def late(lab: Laboratory, peers: int, rounds: int) -> Late:
    """All but one of the peers serve a version; `MISSED` versions later they catch up; then the last one joins.

    The weights are real, of as many bytes as the laboratory broadcasts, and published by the product. The worker that
    joins fetches an anchor and the delta that spans the versions since, decodes both and checks every tensor's digest.
    """
    plan = _serving(lab, peers)
    taken = [_late(lab, plan) for _ in range(rounds)]
    return Late(
        peers=peers,
        megabytes=round(taken[-1].size / 1e6, 3),
        ratio=spread(each.serving_s / lab.bound_of(each.size) for each in taken),
        arrived=spread(each.arrived_s / lab.bound_of(each.size) for each in taken),
        origin=spread(each.origin_bytes / each.size for each in taken),
        catching_up=spread(each.catching_up_s for each in taken),
        wrong_parts=sum(each.wrong for each in taken),
    )


@dataclass(frozen=True)
class _Late:
    size: int
    serving_s: float
    arrived_s: float
    catching_up_s: float
    origin_bytes: int
    wrong: int


def _late(lab: Laboratory, plan: Plan) -> _Late:
    run = lab.new_run()
    with lab.nodes(run, plan) as nodes, lab.weight_publisher(run) as (weight_publisher, key):
        *early, joiner = nodes.values()
        for versions in (1, MISSED):
            order = _publish(weight_publisher, versions) | {"key": key}
            told_s = time.monotonic()
            for node in early:
                node.order("serve", **order)
            served = [node.await_event("serving", SERVING_S) for node in early]
            catching_up_s = max(event.at_s for event in served) - told_s
        sent, told_s = lab.network.sent_bytes(ORIGIN), time.monotonic()
        joiner.order("serve", **order)
        event = joiner.await_event("serving", SERVING_S)
        return _Late(
            size=sum(event.figures["routes"].values()),
            serving_s=event.at_s - told_s,
            arrived_s=event.figures["arrived_s"] - told_s,
            catching_up_s=catching_up_s,
            origin_bytes=lab.network.sent_bytes(ORIGIN) - sent,
            wrong=sum(not each.figures["staged"] for each in (event, *served)),
        )


def uploaded(lab: Laboratory, peers: int, rounds: int, announcing: bool) -> Uploaded:
    """The learner has a link of the workers' rate, and uploads a delta of many parts to the version that they serve.

    `announcing`: each part is announced to the workers as it is stored; else only the whole version is published.
    """
    run, plan = lab.new_run(), _serving(lab, peers)
    settings = {"redis": str(lab.redis), "announces": announcing, "part_bytes": UPLOADED_PART_BYTES}
    with lab.nodes(run, plan) as nodes, lab.weight_publisher(run, LEARNER, **settings) as (weight_publisher, key):
        _publish(weight_publisher, 1)
        for node in nodes.values():
            node.order("follow", key=key)
        for node in nodes.values():
            node.await_event("serving", SERVING_S)
        taken = [_uploaded(lab, nodes, weight_publisher) for _ in range(rounds)]
    return Uploaded(
        what=ANNOUNCED if announcing else TOLD,
        peers=peers,
        megabytes=round(taken[-1].size / 1e6, 3),
        ratio=spread(each.last_s / lab.bound_of(each.size) for each in taken),
        behind=spread(each.behind_s / lab.bound_of(each.size) for each in taken),
        origin=spread(each.origin_bytes / each.size for each in taken),
        wrong_parts=sum(each.wrong for each in taken),
    )


@dataclass(frozen=True)
class _Upload:
    size: int
    last_s: float
    behind_s: float
    origin_bytes: int
    wrong: int


def _uploaded(lab: Laboratory, nodes: Nodes, weight_publisher: Node) -> _Upload:
    sent = lab.network.sent_bytes(ORIGIN)
    weight_publisher.order("publish", versions=1)
    said = weight_publisher.await_event("published", PUBLISHED_S).figures
    served = [node.await_event("serving", SERVING_S).figures for node in nodes.values()]
    last_s = max(each["arrived_s"] for each in served)
    return _Upload(
        size=said["size"],
        last_s=last_s - said["began_s"],
        behind_s=last_s - said["pointed_s"],
        origin_bytes=lab.network.sent_bytes(ORIGIN) - sent,
        wrong=sum(not each["staged"] for each in served),
    )


def _serving(lab: Laboratory, peers: int) -> Plan:
    """Returns a plan of so many workers that decode what they fetch."""
    names = lab.names[:peers]
    return Plan(names, special={name: {"serves": True} for name in names})


def _publish(weight_publisher: Node, versions: int) -> dict[str, Any]:
    weight_publisher.order("publish", versions=versions)
    said = weight_publisher.await_event("published", PUBLISHED_S).figures
    return {"version": (1, said["number"]), "manifest": said["manifest"], "digest": said["digest"]}


# ----------------------------------------------------------------------------------------------------------------------


def _struck(lab: Laboratory, peers: int, rounds: int, what: str, blow: Callable[[Node], None]) -> Series:
    outcomes = []
    for place in range(rounds):
        event = _at_half(lab, place % (peers - 1), blow)
        outcomes.append(lab.broadcast(Plan(lab.names[:peers], event=event)))
    return series(what, outcomes, lab.size, lab.bound_s)


def _at_half(lab: Laboratory, place: int, blow: Callable[[Node], None]) -> Event:
    """Applies `blow` to the worker at that place of the chain, counted from 0, once it has half of the bytes."""

    def event(run: str, nodes: Nodes) -> Collection[str]:
        victim = nodes[_chain(lab, run, len(nodes))[place]]
        victim.await_event("half", HALF_S)
        blow(victim)
        return {victim.name}

    return event


def _chain(lab: Laboratory, run: str, count: int) -> Sequence[str]:
    """Waits until all have joined the run's only route, and returns its chain."""
    give_up = time.monotonic() + CHAIN_S
    with client(lab.redis) as redis:
        while True:
            for key in redis.keys(f"{Keys(run).prefix}chain:*"):
                names = [name.decode() for name in redis.zrange(key, 0, -1)]
                if len(names) == count:
                    return names
            if time.monotonic() > give_up:
                fix = f"see {lab.network.directory / run}"
                raise DeadlineError(Problem(f"chain of {run}", f"not {count} have joined in {CHAIN_S:g} s", fix))
            time.sleep(0.01)
