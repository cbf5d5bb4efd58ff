"""The speed of a broadcast of weights: T_last / (F/B) in network namespaces with shaped links, and what faults cost.

F is the bytes broadcast and B the goodput of one link by iperf3, so 1.0 is the bound for any number of peers. The
baselines are peers that all read the store, or one server (the star); bytes at the origin are counted. Every chunk is
verified on its way, and every delivered part is compared with what was sent. The benchmark needs root, iproute2 and
iperf3; it says so if they are missing.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import FrameType
from typing import NoReturn, TypeVar

from benchmarks.laboratory import machine, scenarios, system, table
from benchmarks.laboratory.figures import Late, Series, Uploaded
from benchmarks.laboratory.network import Network
from benchmarks.laboratory.trial import CHUNK_DEADLINE_S, Laboratory
from benchmarks.rows import Rows
from benchmarks.verdict import print_verdict

T = TypeVar("T")
MBIT, MEGABYTES, ROUNDS, BASELINE_ROUNDS = 400.0, 200.0, 5, 3
QUICK_MBIT, QUICK_MEGABYTES = 200.0, 20.0
CHUNK_BYTES = 262_144
CALIBRATION_S = 3.0
RATIO = {4: 1.05, 8: 1.05}
"""The largest T_last / (F/B) for each number of peers."""
ORIGIN = 1.05
TROUBLE = 1.10
FROZEN = 1.30
"""The largest T_last / (F/B) with a frozen relay, which only its silence reveals."""
LATE = 1.10
BEHIND = 0.25
"""The most F/B from the pointer's move until all workers have what was announced, the upload itself not counted."""


@dataclass(frozen=True)
class Settings:
    mbit: float
    megabytes: float
    rounds: int
    baseline_rounds: int
    peers: tuple[int, ...]
    only: str
    quick: bool


@dataclass(frozen=True)
class Figures:
    """The figures; rates in Mbit/s. `hops_mbit`: the slowest hop of a chain of all nodes, all loaded at once."""

    machine: str
    others_busy: float
    mbit: float
    goodput_mbit: float
    hops_mbit: float
    megabytes: float
    bound_s: float
    baselines: tuple[Series, ...]
    peers: tuple[Series, ...]
    trouble: tuple[Series, ...]
    late: Late | None
    uploads: tuple[Uploaded, ...]


Experiment = Callable[[Laboratory, int, int], Series]
TROUBLE_WITH: Mapping[str, Experiment] = {
    "killed": scenarios.killed,
    "frozen": scenarios.frozen,
    "corrupting": scenarios.corrupting,
    "slow-unknown": lambda lab, peers, rounds: scenarios.slow(lab, peers, rounds, known=False),
    "slow-known": lambda lab, peers, rounds: scenarios.slow(lab, peers, rounds, known=True),
    "regions": scenarios.regions,
}


UPLOADS = ("told", "announced")


def measure(settings: Settings, rows: Rows) -> Figures:
    """Builds the laboratory, runs the experiments, prints each as it ends, and removes the laboratory."""
    others, wanted = machine.quiet_share(), _chooser(settings.only)

    def each(name: str, experiment: Callable[[], T], show: Callable[[T], T]) -> tuple[T, ...]:
        with rows.row(name):
            return (show(experiment()),)
        return ()

    with Network() as network:
        lab = Laboratory(network, settings.mbit, max(settings.peers), int(settings.megabytes * 1e6), CHUNK_BYTES)
        hops = min(lab.calibrate(CALIBRATION_S))
        lab.serve()
        load = f"{machine.business()}; others use {others:.0%} of them"
        table.write(
            f"{settings.megabytes:g} MB over {settings.mbit:g} Mbit/s links: goodput {_mbit(lab.goodput):.1f} Mbit/s, "
        )
        table.write(f"so F/B = {lab.bound_s:.3f} s; {max(settings.peers)} hops at once get {_mbit(hops):.1f}; {load}\n")
        table.write(table.HEADING)
        fewest = min(settings.peers)
        found: dict[str, list[Series]] = {"baselines": [], "peers": [], "trouble": []}
        for source, peers in product(filter(wanted, ("store", "star")), settings.peers):
            experiment = partial(scenarios.plain, lab, peers, settings.baseline_rounds, source)
            found["baselines"] += each(f"{source}, {peers} peers", experiment, table.show)
        for peers in settings.peers if wanted("peers") else ():
            found["peers"] += each(f"{peers} peers", partial(scenarios.plain, lab, peers, settings.rounds), table.show)
        for name in filter(wanted, TROUBLE_WITH):
            experiment = partial(TROUBLE_WITH[name], lab, fewest, settings.rounds)
            found["trouble"] += each(name, experiment, table.show)
        late: tuple[Late, ...] = ()
        if wanted("late"):
            late = each("late", partial(scenarios.late, lab, fewest, settings.rounds), table.show_late)
        uploads: list[Uploaded] = []
        for name in filter(wanted, UPLOADS):
            upload = partial(scenarios.uploaded, lab, fewest, settings.rounds, announcing=name == "announced")
            uploads += each(name, upload, table.show_uploaded)
        return Figures(
            machine=load,
            others_busy=round(others, 3),
            mbit=settings.mbit,
            goodput_mbit=round(_mbit(lab.goodput), 1),
            hops_mbit=round(_mbit(hops), 1),
            megabytes=settings.megabytes,
            bound_s=round(lab.bound_s, 3),
            **{kind: tuple(series) for kind, series in found.items()},
            late=next(iter(late), None),
            uploads=tuple(uploads),
        )


def targets_of(figures: Figures, timed: bool) -> dict[str, bool]:
    """Maps promises to whether they are kept; without `timed`, only those that hold for a short broadcast too."""
    late = (figures.late,) if figures.late else ()
    every = (*figures.baselines, *figures.peers, *figures.trouble, *late, *figures.uploads)
    targets = {"every delivered part is what was sent": not any(each.wrong_parts for each in every)}
    for each in figures.peers:
        targets[f"origin sends at most {ORIGIN} F to {each.nodes} peers"] = each.origin.median <= ORIGIN
    for each in figures.trouble:
        if each.what == "two regions":
            targets[f"origin sends at most {ORIGIN} F per region"] = each.origin.median <= ORIGIN
    for upload in figures.uploads:
        targets[f"{upload.what}: origin sends at most {ORIGIN} F"] = upload.origin.median <= ORIGIN
    return targets | (_timed(figures) if timed else {})


def _timed(figures: Figures) -> dict[str, bool]:
    targets = {
        f"T_last at most {RATIO[each.nodes]} F/B with {each.nodes} peers": each.ratio.median <= RATIO[each.nodes]
        for each in figures.peers
        if each.nodes in RATIO
    }
    alone = next((each.ratio.median for each in figures.peers), None)
    for each in figures.trouble:
        if each.what == scenarios.FROZEN:
            targets[f"{each.what}: T_last at most {FROZEN} F/B"] = each.ratio.median <= FROZEN
        elif alone is not None and each.what != "two regions":
            most = TROUBLE * alone + CHUNK_DEADLINE_S / figures.bound_s
            promise = f"{each.what}: T_last at most {TROUBLE} times that without, and one deadline"
            targets[promise] = each.ratio.median <= most
    if figures.late:
        targets[f"a worker that joins late has everything within {LATE} (anchor + skip delta)/B"] = (
            figures.late.ratio.median <= LATE
        )
    for upload in figures.uploads:
        if upload.what == scenarios.ANNOUNCED:
            promise = f"announced parts are everywhere {BEHIND} F/B after the pointer has moved"
            targets[promise] = upload.behind.median <= BEHIND
    return targets


def _mbit(bytes_per_s: float) -> float:
    return bytes_per_s * 8 / 1e6


def _chooser(only: str) -> Callable[[str], bool]:
    names = only.split(",")
    return lambda name: not only or name in names


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the figures; returns 1 if a target is missed. Returns 0, and says why, if no laboratory can be built."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--quick", action="store_true", help="a small form: 4 peers, few bytes, one round, no timed targets"
    )
    parser.add_argument("--mbit", type=float, help="rate of every link, up and down")
    parser.add_argument("--megabytes", type=float, help="F, the size of a broadcast")
    parser.add_argument("--rounds", type=int, help="rounds of each experiment; the baselines have at most 3")
    parser.add_argument("--peers", type=int, nargs="+", help="numbers of peers")
    experiments = ", ".join(("store", "star", "peers", *TROUBLE_WITH, "late", *UPLOADS))
    parser.add_argument("--only", default="", help=f"experiments, separated by commas: {experiments}")
    args = parser.parse_args(arguments)
    if reasons := system.missing():
        print("skipped: " + "; ".join(reasons))
        return 0
    signal.signal(signal.SIGTERM, _end)  # like Ctrl-C, removes the laboratory
    rounds = args.rounds or (1 if args.quick else ROUNDS)
    settings = Settings(
        mbit=args.mbit or (QUICK_MBIT if args.quick else MBIT),
        megabytes=args.megabytes or (QUICK_MEGABYTES if args.quick else MEGABYTES),
        rounds=rounds,
        baseline_rounds=min(rounds, BASELINE_ROUNDS),
        peers=tuple(args.peers or ((4,) if args.quick else tuple(RATIO))),
        only=args.only,
        quick=args.quick,
    )
    figures = measure(settings, rows := Rows())
    targets = rows.promises | targets_of(figures, timed=not args.quick)
    if args.json:
        print_verdict(figures, targets)
    else:
        for promise, kept in targets.items():
            print(f"  {'kept  ' if kept else 'MISSED'}  {promise}")
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
