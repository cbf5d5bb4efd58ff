"""What the benchmark prints, from what was measured: medians with their range, ratios to the bound, promises kept.

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
    """Median, least and most of at least one value."""
    known = sorted(values)
    return Spread(round(statistics.median(known), 4), round(known[0], 4), round(known[-1], 4), len(known))


@dataclass(frozen=True)
class Arrival:
    """One node's route whole and verified, `seconds` after all were told. `wrong` parts differ from what was sent."""

    name: str
    seconds: float
    cpu_s: float
    rss_mb: float
    store_bytes: int
    peer_bytes: int
    wrong: int


@dataclass(frozen=True)
class Outcome:
    """One broadcast. `origin_bytes` left the origin's link; `busy` is the machine's share of processor time."""

    arrivals: tuple[Arrival, ...]
    origin_bytes: int
    busy: float

    def last_s(self, names: Sequence[str] = ()) -> float:
        """When the last node had all (of `names`, if any are given)."""
        return max(each.seconds for each in self.arrivals if not names or each.name in names)


@dataclass(frozen=True)
class Series:
    """The same broadcast several times. `ratio` is T_last / (F/B); `origin` is bytes at the origin / F."""

    what: str
    nodes: int
    ratio: Spread
    first: Spread
    origin: Spread
    busy: Spread
    cpu_share: float
    """Of the busiest node: processor seconds per second, median."""
    rss_mb: float
    """Of the largest node."""
    wrong_parts: int


def series(what: str, outcomes: Sequence[Outcome], size: int, bound_s: float, names: Sequence[str] = ()) -> Series:
    """`names`: the nodes whose arrival counts; all, if none are given. Wrong parts count wherever they are."""
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
        rss_mb=round(max(each.rss_mb for outcome in outcomes for each in outcome.arrivals), 1),
        wrong_parts=sum(each.wrong for outcome in outcomes for each in outcome.arrivals),
    )


@dataclass(frozen=True)
class Late:
    """A worker that joins when all others serve a version. `ratio`: its time until it serves, over (anchor + skip)/B.

    `arrived`: the same until all its bytes are there. `catching_up`: seconds of the others, who had missed as many
    versions, until they served it. `wrong_parts`: workers whose staged tensors are not those that were published.
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

    `ratio`: seconds from the call of `publish` until the last worker has all, over F/B. `behind`: those of them after
    the pointer had moved. `wrong_parts`: workers whose staged tensors are not those that were published.
    """

    what: str
    peers: int
    megabytes: float
    ratio: Spread
    behind: Spread
    origin: Spread
    wrong_parts: int
