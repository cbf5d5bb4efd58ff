"""A bounded histogram of generation times, which a heartbeat carries as one word and which adds up over workers.

Bucket k holds times above 0.1·√2^(k−1) s, up to 0.1·√2^k s; the first one holds shorter times as well and the last one
longer ones, of more than 20 hours. A quantile is interpolated within its bucket, so it is wrong by less than a fifth.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Self

from echo_queue.documents import printed

FIRST_S, GROWTH = 0.1, math.sqrt(2)
BUCKETS = 40
RECENT = 256
"""The number of groups, those accepted last, whose times a worker reports: their histogram fits into one word."""
WORD = re.compile("([0-9]{1,2}):([0-9]{1,4}(?:,[0-9]{1,4})*)")


@printed("groups", "p50_s", "p90_s", "p99_s")
@dataclass(frozen=True)
class GenerationTimes:
    """Numbers of groups by generation time: `counts[k]` in bucket k; the buckets after the last one are empty."""

    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, times_s: Iterable[float]) -> Self:
        """Counts generation times in seconds."""
        counts = [0] * BUCKETS
        for time_s in times_s:
            counts[_bucket(time_s)] += 1
        while counts and not counts[-1]:
            counts.pop()
        return cls(tuple(counts))

    @classmethod
    def parse(cls, word: str) -> Self:
        """Reads what `word` returned; an empty word has no groups. Raises `ValueError` for any other text."""
        if not word:
            return cls()
        found = WORD.fullmatch(word)
        if found is None:
            raise ValueError(f"{word[:40]} is no histogram")
        counts = (0,) * int(found[1]) + tuple(map(int, found[2].split(",")))
        if len(counts) > BUCKETS:
            raise ValueError(f"{len(counts)} buckets")
        return cls(counts)

    def word(self) -> str:
        """Returns the number of the first bucket that is not empty, a colon, and the counts from there on."""
        first = next((place for place, count in enumerate(self.counts) if count), None)
        return "" if first is None else f"{first}:{','.join(map(str, self.counts[first:]))}"

    @classmethod
    def together(cls, all_times: Iterable["GenerationTimes"]) -> Self:
        """Returns the groups of all of them."""
        return cls(tuple(map(sum, zip_longest(*(times.counts for times in all_times), fillvalue=0))))

    def __add__(self, other: "GenerationTimes") -> "GenerationTimes":
        return GenerationTimes.together((self, other))

    @property
    def groups(self) -> int:
        return sum(self.counts)

    def quantile_s(self, share: float) -> float | None:
        """Returns the time that this share of the groups does not exceed, 0 < share < 1; None without groups."""
        wanted = share * self.groups
        for place, (count, reached) in enumerate(zip(self.counts, accumulate(self.counts), strict=True)):
            if count and reached >= wanted:
                within = 1 - (reached - wanted) / count
                return float(FIRST_S * GROWTH ** (place - 1 + within))
        return None

    @property
    def p50_s(self) -> float | None:
        return self.quantile_s(0.5)

    @property
    def p90_s(self) -> float | None:
        return self.quantile_s(0.9)

    @property
    def p99_s(self) -> float | None:
        return self.quantile_s(0.99)


def _bucket(time_s: float) -> int:
    steps = math.log(max(time_s, FIRST_S) / FIRST_S, GROWTH)
    return min(BUCKETS - 1, math.ceil(steps - 1e-9))
