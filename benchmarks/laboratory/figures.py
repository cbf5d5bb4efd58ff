"""The figures that the benchmark prints: medians with their range, ratios to the bound, promises kept.

The bound of a broadcast of F bytes to any number of nodes is F/B, B being the goodput of one link.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    median: float
    least: float
    most: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:6.3f}  ({self.least:.3f} … {self.most:.3f}, {self.rounds})"


def spread(values: Iterable[float]) -> Spread:
    """Returns the median, the least and the most of at least one value."""
    known = sorted(values)
    return Spread(round(statistics.median(known), 4), round(known[0], 4), round(known[-1], 4), len(known))


@dataclass(frozen=True)
class Arrival:
    """The arrival of a whole, verified route at a node, `seconds` after the order. `wrong`: parts that differ."""

    name: str
    seconds: float
    cpu_s: float
    rss_mb: float
    store_bytes: int
    peer_bytes: int
    wrong: int


@dataclass(frozen=True)
class Outcome:
    """One broadcast. `origin_bytes` left the origin's link; `busy`: the share of processor time used on the machine."""

    arrivals: tuple[Arrival, ...]
    origin_bytes: int
    busy: float

    def last_s(self, names: Sequence[str] = ()) -> float:
        """Returns when the last node (of `names`, if any are given) had everything."""
        return max(each.seconds for each in self.arrivals if not names or each.name in names)


@dataclass(frozen=True)
class Series:
    """The same broadcast several times. `ratio`: T_last / (F/B); `origin`: bytes at the origin / F."""

    what: str
    nodes: int
    ratio: Spread
    first: Spread
    origin: Spread
    busy: Spread
    cpu_share: float
    """Processor seconds per second of the busiest node, median."""
    cores: float
    """The same of all nodes together, median. Where other processes leave less, the ratio is the machine's."""
    rss_mb: float
    """Memory of the largest node."""
    wrong_parts: int


def series(what: str, outcomes: Sequence[Outcome], size: int, bound_s: float, names: Sequence[str] = ()) -> Series:
    """Summarises broadcasts. `names`: the nodes whose arrival counts, by default all. Wrong parts count at any node."""
    lasts = [outcome.last_s(names) for outcome in outcomes]
    return Series(
        what=what,
        nodes=len(outcomes[0].arrivals),
        ratio=spread(last / bound_s for last in lasts),
        first=spread(min(each.seconds for each in outcome.arrivals) / bound_s for outcome in outcomes),
        origin=spread(outcome.origin_bytes / size for outcome in outcomes),
        busy=spread(outcome.busy for outcome in outcomes),
        cpu_share=round(
            statistics.median(
                max(each.cpu_s for each in outcome.arrivals) / last
                for outcome, last in zip(outcomes, lasts, strict=True)
            ),
            3,
        ),
        cores=round(
            statistics.median(
                sum(each.cpu_s for each in outcome.arrivals) / last
                for outcome, last in zip(outcomes, lasts, strict=True)
            ),
            3,
        ),
        rss_mb=round(max(each.rss_mb for outcome in outcomes for each in outcome.arrivals), 1),
        wrong_parts=sum(each.wrong for outcome in outcomes for each in outcome.arrivals),
    )


@dataclass(frozen=True)
class Late:
    """A worker that joins when all others serve a version. `ratio`: its time until it serves, over (anchor + skip)/B.

    `arrived`: the same ratio for the time until all its bytes have arrived. `catching_up`: seconds that the other
    workers, which had missed as many versions, took to serve it. `wrong_parts`: workers whose staged tensors differ
    from those published.
    """

    peers: int
    megabytes: float
    ratio: Spread
    arrived: Spread
    origin: Spread
    catching_up: Spread
    wrong_parts: int


@dataclass(frozen=True)
class Uploaded:
    """A version that its learner uploads over a link like the workers' own. F: bytes of its route.

    `ratio`: seconds from the call of `publish` until the last worker has everything, over F/B. `behind`: the same,
    counted from the pointer's move. `wrong_parts`: workers whose staged tensors differ from those published.
    """

    what: str
    peers: int
    megabytes: float
    ratio: Spread
    behind: Spread
    origin: Spread
    wrong_parts: int
