"""From which source a route is read: decisions of values alone. No clocks, locks, threads or sockets in here.

- A peer that is slow is left only for one that is really further, or has proved twice as fast: it is *probed*, a few
  chunks. The store is probed once, where no other peer is: so a slow store is not made slower by everybody.
- A worker that reads the store asks now and then whether a peer has come that could serve it instead.
- A busy peer is asked again when it says, within one deadline of a chunk; then the next one is.
- When a source dries up, the workers next to it are the first to act: patience grows with the length of the chain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

STORE = "the store"
"""The store's name among sources; no worker has one with a space."""
LOOK_S = 1.0
"""The rate of a source is looked at so often."""
LAG_CHUNKS = 16
"""A source is behind another one if it is more chunks behind than this; less is the length of the chain."""
LAG_S = 2.0
"""It must be behind by this time at its own rate as well."""
PROBE_CHUNKS = 8
STRANGE_S = 5.0
"""Where nobody knows what rate is usual, the store is not probed before."""
BUSY_TRIES = 3
BUSY_PAUSE_S = 0.5
"""For a peer that does not say itself when to come again."""


@dataclass(frozen=True)
class ProbeView:
    """A probe of the source that was just read. The first half of its chunks does not count: it took a connection and
    its slow start."""

    chunks: int
    rate: float
    """Bytes/s over the second half so far."""
    rate_before: float
    """Bytes/s that the source before it gave."""


@dataclass(frozen=True)
class SourceView:
    """What is known when `source` was just read. Times are of one monotonic clock; rates in bytes/s, 0 if unknown."""

    source: str
    """The name of a peer, or `STORE`."""
    current: bool
    """Whether it is the one to read from, and no other is asked about just now."""
    others: tuple[str, ...]
    """The peers after the first, nearest first."""
    peers: int
    """How many peers the route has, the first included."""
    starved: bool
    """Whether this read gave nothing: the source waits for its own source."""
    fed_s: float
    """When bytes last came."""
    began_s: float
    looked_s: float
    """When the rate was last looked at."""
    bytes: int
    """What came since then."""
    usual: float
    """The rate that is usual among the workers of the region."""
    chunk_deadline_s: float
    next: int
    """The first chunk of the part that is missing here."""
    chunks: int
    """Chunks of the part."""
    chunk_bytes: int
    joins: bool = True
    """Whether there can be peers at all."""
    probed: frozenset[str] = frozenset()
    """Sources that were probed for this route: each is once."""
    probe: ProbeView | None = None
    answers: "Answers | None" = None

    def rate(self, now_s: float) -> float:
        return self.bytes / (now_s - self.looked_s) if now_s > self.looked_s else 0.0


@dataclass(frozen=True)
class Answers:
    """What sources answered when they were asked how far they are; `rate` is that of the source that was read then."""

    rate: float
    next: int
    """The first chunk that was missing here when they were asked."""
    landed: Mapping[str, int | None] = field(default_factory=dict)
    """By source the first chunk that it lacks; None: it did not answer."""


@dataclass(frozen=True)
class Stay:
    """Go on as before."""


@dataclass(frozen=True)
class Ask:
    """Ask the peers how far they are, or the queue for peers while the store is read; then choose again."""


@dataclass(frozen=True)
class Probe:
    """Read a few chunks from this source instead."""

    source: str


@dataclass(frozen=True)
class EndProbe:
    """Go back to the source before the probe."""


@dataclass(frozen=True)
class Switch:
    """Read from this source instead, and drop the one that was read before."""

    source: str
    why: str


@dataclass(frozen=True)
class Drop:
    """Read this source no more for this route."""

    source: str
    why: str


Choice = Stay | Ask | Probe | EndProbe | Switch | Drop


def choose(view: SourceView, now_s: float) -> Choice:
    """What to do after a read, or once the answers to `Ask` are there."""
    if view.answers is not None:
        return _after_answers(view, view.answers, now_s)
    starved_s = now_s - view.fed_s
    if view.starved and starved_s > patience_s(view):
        return Drop(view.source, f"{view.source} has had nothing to give for {starved_s:.1f} s")
    if view.probe is not None:
        return _after_probe(view, view.probe)
    if look_is_due(view, now_s) and not _is_settled(view, now_s):
        return Ask()
    return Stay()


def look_is_due(view: SourceView, now_s: float) -> bool:
    """Whether the rate has been measured for long enough to say something."""
    return view.current and view.probe is None and now_s - view.looked_s >= LOOK_S


def patience_s(view: SourceView) -> float:
    """How long a source may have nothing to give; longer further down the chain."""
    return (2 + view.peers) * view.chunk_deadline_s


def _is_settled(view: SourceView, now_s: float) -> bool:
    """Whether nothing better needs to be looked for."""
    if view.source == STORE:
        return not view.joins
    usual = view.usual > 0 and view.rate(now_s) >= view.usual / 2
    return usual and (bool(view.probed) or now_s - view.began_s < STRANGE_S)


def _after_probe(view: SourceView, probe: ProbeView) -> Choice:
    if probe.chunks < PROBE_CHUNKS:
        return Stay()
    if probe.rate >= 2 * probe.rate_before and view.peers:
        return Switch(view.source, f"is slow ({probe.rate_before:.3g} bytes/s), {view.source} is not")
    return EndProbe()


def _after_answers(view: SourceView, answers: Answers, now_s: float) -> Choice:
    ahead = answers.next + max(LAG_CHUNKS, int(LAG_S * answers.rate / view.chunk_bytes))
    for other in view.others:
        if other not in answers.landed:
            continue
        landed = answers.landed[other]
        if landed is None:
            return Drop(other, f"{other} does not answer")
        if landed > ahead:
            if (answers.landed.get(view.source) or 0) > ahead:
                return _probe(view, other)  # its upload may be slow, or this worker's own line
            return Switch(other, f"is slow ({answers.rate:.3g} bytes/s), {other} is ahead of it")
    # Where nobody knows what is usual, or a slow source taught it, time tells which one may be slow.
    unsure = not view.usual or answers.rate >= view.usual / 2
    if view.peers == 1 and not (unsure and now_s - view.began_s < STRANGE_S):
        return _probe(view, STORE)
    return Stay()


def _probe(view: SourceView, source: str) -> Choice:
    """Each source is probed once, and not for the end of a part."""
    worthwhile = source not in view.probed and view.chunks - view.next > PROBE_CHUNKS
    return Probe(source) if worthwhile else Stay()


# Failures -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailureView:
    """What is known when a peer has failed."""

    source: str
    why: str
    busy: bool
    retry_s: float
    """When a busy peer asks to come again; 0: it did not say."""
    tries: int
    """How often it has sent this worker away before."""
    paused_s: float
    """How long this worker has waited for it so far."""
    chunk_deadline_s: float


@dataclass(frozen=True)
class Retry:
    """Read the same source again after a pause."""

    pause_s: float


def choose_after_failure(view: FailureView) -> Retry | Drop:
    left_s = view.chunk_deadline_s - view.paused_s
    if view.busy and view.tries < BUSY_TRIES and left_s > 0:
        return Retry(min(view.retry_s or BUSY_PAUSE_S, left_s))
    return Drop(view.source, view.why)
