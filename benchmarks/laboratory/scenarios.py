"""The experiments: a broadcast to some peers, plain, with something wrong, in two regions, and to one that comes late.

Every series is the same broadcast `rounds` times, each with a run, processes and bytes of its own.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.laboratory.crew import Node
from benchmarks.laboratory.figures import Late, Series, Uploaded, series, spread
from benchmarks.laboratory.origin import client
from benchmarks.laboratory.trial import LEARNER, ORIGIN, Event, Laboratory, Nodes, Plan
from echo_queue.errors import DeadlineError, Problem
from echo_queue.queue.keys import Keys

CHAIN_S = 10.0
HALF_S = 120.0
SLOW = 10
"""A slow peer's rate is that of the others divided by this."""
REGIONS = ("east", "west")
MISSED = 8
"""Versions, which one difference spans."""
SERVING_S = PUBLISHED_S = 300.0
TOLD, ANNOUNCED = "uploaded, then told", "uploaded, announced"
UPLOADED_PART_BYTES = 4 << 20
"""A model of 14 GB has some 200 parts of the usual size; here that would be one or two."""
WARM_SHARE = 0.5
"""Of the usual bytes: enough to measure rates by."""


def plain(lab: Laboratory, peers: int, rounds: int, source: str = "peers") -> Series:
    """Nothing goes wrong. `source`: "peers", or a baseline: "store", "star"."""
    outcomes = [lab.broadcast(Plan(lab.names[:peers], source)) for _ in range(rounds)]
    what = {"peers": "peers", "store": "store only", "star": "star"}[source]
    return series(what, outcomes, lab.size, lab.bound_s)


def killed(lab: Laboratory, peers: int, rounds: int) -> Series:
    """A relay, each time at another place of the chain, is killed once it has half of the bytes."""
    return _struck(lab, peers, rounds, "relay killed at 50 %", Node.kill)


def frozen(lab: Laboratory, peers: int, rounds: int) -> Series:
    """A relay stops at 50 % and keeps its connections open: only a deadline tells."""
    return _struck(lab, peers, rounds, "relay frozen at 50 %", lambda node: os.kill(node.process.pid, signal.SIGSTOP))


def corrupting(lab: Laboratory, peers: int, rounds: int) -> Series:
    """The first of the chain flips a bit in each of the bytes' stretches that it sends on."""
    names = lab.names[:peers]
    plan = Plan(names, special={names[0]: {"corrupts": True}}, first=names[0])
    return series("corrupting peer", [lab.broadcast(plan) for _ in range(rounds)], lab.size, lab.bound_s)


def slow(lab: Laboratory, peers: int, rounds: int, known: bool) -> Series:
    """The first to ask has a tenth of the rate, up and down; the others' arrival counts.

    `known`: the same workers have fetched an earlier version, and so measured their rates.
    """
    names = lab.names[:peers]
    lab.network.shape(names[0], lab.mbit / SLOW, lab.mbit / SLOW)
    try:
        outcomes = []
        for _ in range(rounds):
            run, plan = lab.new_run(), Plan(names, first=names[0], event=lambda run, nodes: {names[0]})
            with lab.crew(run, plan) as nodes:
                if known:
                    earlier = lab.upload(run, 0, WARM_SHARE)
                    lab.fetch(earlier, nodes, replace(plan, event=lambda run, nodes: ()))
                outcomes.append(lab.fetch(lab.upload(run), nodes, plan))
    finally:
        lab.network.shape(names[0], lab.mbit, lab.mbit)
    what = f"slow peer ({'known' if known else 'unknown'})"
    return series(what, outcomes, lab.size, lab.bound_s)


def regions(lab: Laboratory, peers: int, rounds: int) -> Series:
    """Half of the peers in each of two regions; the origin's link carries both. Its bytes are printed per region."""
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

    Real weights, of as many bytes as the laboratory broadcasts, and the project's press: the one that joins fetches an
    anchor and the difference that spans what was published since, decodes both and checks every tensor's digest.
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
    with lab.crew(run, plan) as nodes, lab.weight_publisher(run) as (weight_publisher, key):
        *early, joiner = nodes.values()
        for versions in (1, MISSED):
            order = _publish(weight_publisher, versions) | {"key": key}
            told_s = time.monotonic()
            for node in early:
                node.tell("serve", **order)
            served = [node.hear("serving", SERVING_S) for node in early]
            catching_up_s = max(event.at_s for event in served) - told_s
        sent, told_s = lab.network.sent_bytes(ORIGIN), time.monotonic()
        joiner.tell("serve", **order)
        event = joiner.hear("serving", SERVING_S)
        return _Late(
            size=sum(event.figures["routes"].values()),
            serving_s=event.at_s - told_s,
            arrived_s=event.figures["arrived_s"] - told_s,
            catching_up_s=catching_up_s,
            origin_bytes=lab.network.sent_bytes(ORIGIN) - sent,
            wrong=sum(not each.figures["staged"] for each in (event, *served)),
        )


def uploaded(lab: Laboratory, peers: int, rounds: int, announcing: bool) -> Uploaded:
    """The learner has a link of the workers' rate, and uploads a difference of many parts to the version they serve.

    `announcing`: they are told of each part as it is stored; else of the version alone, when all of it is.
    """
    run, plan = lab.new_run(), _serving(lab, peers)
    settings = {"redis": str(lab.redis), "announces": announcing, "part_bytes": UPLOADED_PART_BYTES}
    with lab.crew(run, plan) as nodes, lab.weight_publisher(run, LEARNER, **settings) as (weight_publisher, key):
        _publish(weight_publisher, 1)
        for node in nodes.values():
            node.tell("follow", key=key)
        for node in nodes.values():
            node.hear("serving", SERVING_S)
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
    weight_publisher.tell("publish", versions=1)
    said = weight_publisher.hear("published", PUBLISHED_S).figures
    served = [node.hear("serving", SERVING_S).figures for node in nodes.values()]
    last_s = max(each["arrived_s"] for each in served)
    return _Upload(
        size=said["size"],
        last_s=last_s - said["began_s"],
        behind_s=last_s - said["pointed_s"],
        origin_bytes=lab.network.sent_bytes(ORIGIN) - sent,
        wrong=sum(not each["staged"] for each in served),
    )


def _serving(lab: Laboratory, peers: int) -> Plan:
    """So many workers, which decode what they fetch."""
    names = lab.names[:peers]
    return Plan(names, special={name: {"serves": True} for name in names})


def _publish(weight_publisher: Node, versions: int) -> dict[str, Any]:
    weight_publisher.tell("publish", versions=versions)
    said = weight_publisher.hear("published", PUBLISHED_S).figures
    return {"version": (1, said["number"]), "manifest": said["manifest"], "digest": said["digest"]}


# ----------------------------------------------------------------------------------------------------------------------


def _struck(lab: Laboratory, peers: int, rounds: int, what: str, blow: Callable[[Node], None]) -> Series:
    outcomes = []
    for place in range(rounds):
        event = _at_half(lab, place % (peers - 1), blow)
        outcomes.append(lab.broadcast(Plan(lab.names[:peers], event=event)))
    return series(what, outcomes, lab.size, lab.bound_s)


def _at_half(lab: Laboratory, place: int, blow: Callable[[Node], None]) -> Event:
    """Strikes whoever stands at that place of the chain, from 0 on, once it has half of the bytes."""

    def event(run: str, nodes: Nodes) -> Collection[str]:
        victim = nodes[_chain(lab, run, len(nodes))[place]]
        victim.hear("half", HALF_S)
        blow(victim)
        return {victim.name}

    return event


def _chain(lab: Laboratory, run: str, count: int) -> Sequence[str]:
    """The chain of the run's only route, once all have joined."""
    give_up = time.monotonic() + CHAIN_S
    with client(lab.redis) as redis:
        while True:
            for key in redis.keys(f"{Keys(run).prefix}chain:*"):
                names = [name.decode() for name in redis.lrange(key, 0, -1)]
                if len(names) == count:
                    return names
            if time.monotonic() > give_up:
                fix = f"see {lab.network.directory / run}"
                raise DeadlineError(Problem(f"chain of {run}", f"not {count} have joined in {CHAIN_S:g} s", fix))
            time.sleep(0.01)
