"""Decides from which source a route is read: pure functions of values, without clocks, locks, threads or sockets.

- A slow peer is left only for a source that is really further, or that has proved twice as fast when it was *probed*:
  a few chunks are read from it. The store is probed once, and only if there is no other peer, so that not every worker
  makes a slow store slower.
- A worker that reads the store asks now and then whether there is a peer that could serve it instead.
- A busy peer is asked again at the time that it names, for at most one deadline of a chunk; then the next one is read.
- When a source has nothing to give, the workers nearest to the cause act first: patience grows with the length of the
  chain. It is a budget for all sources together, which begins again only when bytes come. An honest source has left its
  own within one deadline; so where another peer has more, one that has nothing for longer is left at once.
- How soon a silent peer counts as dead follows from the rate at which its chunks came before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from workers.weights.cache.sources import THE_STORE

LOOK_S = 1.0
"""The interval at which the rate of a source is checked."""
LAG_CHUNKS = 16
"""A source is behind another one if it is more chunks behind than this; a smaller distance comes from the chain."""
LAG_S = 2.0
"""It must also be behind by more than it delivers in this time at its own rate."""
PROBE_CHUNKS = 8
STRANGE_S = 5.0
"""The store is not probed before this time has passed, as long as the usual rate is unknown."""
BUSY_TRIES = 3
SILENT_CHUNKS = 16
"""A peer counts as dead if nothing is heard of it for the time in which so many chunks came from it before."""
LATE = 1.5
"""The deadlines after which a source that has nothing is left for one that has: its own source costs it one."""
LEAST_SILENCE_S = 1.0
"""No peer counts as dead before this time: a busy machine may stand still for a moment."""
BUSY_PAUSE_S = 0.5
"""The pause for a busy peer that does not say when to ask again."""


@dataclass(frozen=True)
class ProbeView:
    """A probe of the source that was just read. The first half of its chunks does not count, because it includes making
    the connection and TCP's slow start."""

    chunks: int
    rate: float
    """Bytes/s over the second half so far."""
    rate_before: float
    """The rate in bytes/s of the source before it."""


@dataclass(frozen=True)
class SourceView:
    """The state of a route after a read of `source`. Times are of one monotonic clock; rates in bytes/s, 0: unknown."""

    source: str
    """The name of a peer, or `THE_STORE`."""
    current: bool
    """True if it is the source to read from, and no thread is asking for a better one."""
    others: tuple[str, ...]
    """The peers after the first, nearest first."""
    peers: int
    """The number of peers that the route has, the first included."""
    starved: bool
    """True if this read gave nothing, because the source waits for its own source."""
    fed_s: float
    """The time at which bytes last came."""
    began_s: float
    looked_s: float
    """The time at which the rate was last checked."""
    bytes: int
    """The bytes that came since then."""
    usual: float
    """The rate that is usual among the workers of the region."""
    chunk_deadline_s: float
    next: int
    """The first chunk of the part that is missing here."""
    chunks: int
    """Chunks of the part."""
    chunk_bytes: int
    joins: bool = True
    """True if the queue can be asked for peers."""
    probed: frozenset[str] = frozenset()
    """The sources that were probed for this route; each is probed once."""
    probe: ProbeView | None = None
    answers: "Answers | None" = None

    def rate(self, now_s: float) -> float:
        return self.bytes / (now_s - self.looked_s) if now_s > self.looked_s else 0.0


@dataclass(frozen=True)
class Answers:
    """The sources' answers to the question how far they are. `rate`: that of the source that was then read."""

    rate: float
    next: int
    """The first chunk that was missing here when they were asked."""
    landed: Mapping[str, int | None] = field(default_factory=dict)
    """Maps each source to the first chunk that it lacks; None: it did not answer."""
    late: bool = False
    """True if they were asked because no bytes had come for long, and not because the source is slow."""


@dataclass(frozen=True)
class Stay:
    """Keep reading from the same source."""


@dataclass(frozen=True)
class Ask:
    """Ask the peers how far they are, or the queue for peers while the store is read; then choose again.

    `late`: no bytes have come for long.
    """

    late: bool = False


@dataclass(frozen=True)
class Probe:
    """Read a few chunks from this source instead."""

    source: str


@dataclass(frozen=True)
class EndProbe:
    """Go back to the source before the probe."""


@dataclass(frozen=True)
class Switch:
    """Read from this source instead, and drop the one that was read before. `dry`: that one had nothing to give."""

    source: str
    why: str
    dry: bool = False


@dataclass(frozen=True)
class Drop:
    """Read this source no more for this route. `dry`: it had nothing to give."""

    source: str
    why: str
    dry: bool = False


Choice = Stay | Ask | Probe | EndProbe | Switch | Drop


def choose(view: SourceView, now_s: float) -> Choice:
    """Chooses the action after a read, or once the answers to `Ask` have come."""
    if view.answers is not None:
        return (_after_late_answers if view.answers.late else _after_answers)(view, view.answers, now_s)
    starved_s = now_s - view.fed_s
    if view.starved and starved_s > patience_s(view):
        return Drop(view.source, f"{view.source} has had nothing to give for {starved_s:.1f} s", dry=True)
    if view.starved and _is_late(view, now_s) and view.current and view.others and view.probe is None:
        return Ask(late=True)
    if view.probe is not None:
        return _after_probe(view, view.probe)
    if look_is_due(view, now_s) and not _is_settled(view, now_s):
        return Ask()
    return Stay()


def look_is_due(view: SourceView, now_s: float) -> bool:
    """Returns whether the rate has been measured for long enough to be judged."""
    return view.current and view.probe is None and now_s - view.looked_s >= LOOK_S


def patience_s(view: SourceView) -> float:
    """Returns the time for which no bytes may come from any source; it is longer further down the chain."""
    return (1 + view.peers) / 2 * view.chunk_deadline_s


def silence_s(chunk_s: float, chunk_deadline_s: float) -> float:
    """Returns the time after which a silent peer counts as dead. `chunk_s`: seconds for one chunk; 0: not known."""
    if not chunk_s:
        return chunk_deadline_s
    return min(max(SILENT_CHUNKS * chunk_s, LEAST_SILENCE_S), chunk_deadline_s)


def _is_late(view: SourceView, now_s: float) -> bool:
    """Returns whether no bytes have come for longer than an honest source has nothing to give."""
    return now_s - view.fed_s > LATE * view.chunk_deadline_s


def _is_settled(view: SourceView, now_s: float) -> bool:
    """Returns whether there is no need to look for a better source."""
    if view.source == THE_STORE:
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
    # If the usual rate is unknown, or was itself learned from a slow source, only time shows which source is slow.
    unsure = not view.usual or answers.rate >= view.usual / 2
    if view.peers == 1 and not (unsure and now_s - view.began_s < STRANGE_S):
        return _probe(view, THE_STORE)
    return Stay()


def _after_late_answers(view: SourceView, answers: Answers, now_s: float) -> Choice:
    for other in view.others:
        landed = answers.landed.get(other, answers.next)
        if landed is None:
            return Drop(other, f"{other} does not answer")
        if landed > answers.next and _is_late(view, now_s):
            return Switch(other, f"has nothing to give, {other} has", dry=True)
    return Stay()


def _probe(view: SourceView, source: str) -> Choice:
    """Probes `source` if it was not probed before and the rest of the part is long enough."""
    worthwhile = source not in view.probed and view.chunks - view.next > PROBE_CHUNKS
    return Probe(source) if worthwhile else Stay()


# Failures -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailureView:
    """The state of a peer that has failed."""

    source: str
    why: str
    busy: bool
    retry_s: float
    """The seconds after which a busy peer wants to be asked again; 0: it did not say."""
    tries: int
    """The number of times that it has refused this worker before."""
    paused_s: float
    """The seconds that this worker has waited for it so far."""
    chunk_deadline_s: float


@dataclass(frozen=True)
class Retry:
    """Read the same source again after a pause."""

    pause_s: float


def choose_after_failure(view: FailureView) -> Retry | Drop:
    """Chooses the action after a peer has failed."""
    left_s = view.chunk_deadline_s - view.paused_s
    if view.busy and view.tries < BUSY_TRIES and left_s > 0:
        return Retry(min(view.retry_s or BUSY_PAUSE_S, left_s))
    return Drop(view.source, view.why)
