"""The choice of a route's source, as tables, without sockets, clocks or threads."""

from dataclasses import replace

import pytest

from workers.weights.cache.sources import THE_STORE
from workers.weights.peers.source_choice import (
    BUSY_PAUSE_S,
    BUSY_TRIES,
    LAG_CHUNKS,
    LAG_S,
    LEAST_SILENCE_S,
    LOOK_S,
    PROBE_CHUNKS,
    SILENT_CHUNKS,
    STRANGE_S,
    Answers,
    Ask,
    Choice,
    Drop,
    EndProbe,
    FailureView,
    Probe,
    ProbeView,
    Retry,
    SourceView,
    Stay,
    Switch,
    choose,
    choose_after_failure,
    look_is_due,
    silence_s,
)

CHUNK = 1000
USUAL = 100_000.0
NOW_S = 100.0
VIEW = SourceView(
    source="a",
    current=True,
    others=("b", "c"),
    peers=3,
    starved=False,
    fed_s=NOW_S,
    began_s=NOW_S - 2.0,
    looked_s=NOW_S - LOOK_S,
    bytes=round(USUAL * LOOK_S),
    usual=USUAL,
    chunk_deadline_s=5.0,
    next=100,
    chunks=1000,
    chunk_bytes=CHUNK,
)
"""A view that reads from the first of three peers, at the usual rate, and checks it for the first time."""
SLOW = round(USUAL * LOOK_S / 2) - 1
ALONE = replace(VIEW, others=(), peers=1)
AT_STORE = replace(VIEW, source=THE_STORE, others=(), peers=0)
LATE = NOW_S - STRANGE_S
LATE_S = 7.5


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(VIEW, Stay(), id="the usual rate"),
        pytest.param(replace(VIEW, bytes=SLOW), Ask(), id="less than half the usual rate"),
        pytest.param(replace(VIEW, bytes=SLOW, current=False), Stay(), id="slow, but another is read or asked already"),
        pytest.param(replace(VIEW, bytes=SLOW, looked_s=NOW_S - 0.9 * LOOK_S), Stay(), id="too early to say"),
        pytest.param(replace(VIEW, usual=0.0), Ask(), id="nobody knows what is usual"),
        pytest.param(replace(VIEW, began_s=LATE), Ask(), id="the usual rate, after a while, and nothing was probed"),
        pytest.param(
            replace(VIEW, began_s=LATE, probed=frozenset("b")), Stay(), id="the usual rate, and one was probed"
        ),
        pytest.param(AT_STORE, Ask(), id="the store is read: are there peers by now"),
        pytest.param(replace(AT_STORE, joins=False), Stay(), id="the store is read, and there are no peers ever"),
    ],
)
def test_a_better_source_is_asked_for_when_the_rate_is_not_the_usual_one(view: SourceView, expected: Choice) -> None:
    assert choose(view, NOW_S) == expected


@pytest.mark.parametrize(("peers", "patience_s"), [(1, 5.0), (2, 7.5), (3, 10.0), (8, 22.5)])
def test_a_source_that_has_nothing_to_give_is_left_sooner_the_nearer_it_is_to_the_store(
    peers: int, patience_s: float
) -> None:
    starved = replace(VIEW, starved=True, peers=peers, looked_s=NOW_S, bytes=0, others=())
    assert choose(replace(starved, fed_s=NOW_S - patience_s), NOW_S) == Stay()
    choice = choose(replace(starved, fed_s=NOW_S - patience_s - 0.1), NOW_S)
    assert choice == Drop("a", f"a has had nothing to give for {patience_s + 0.1:.1f} s", dry=True)
    assert choose(replace(starved, starved=False, fed_s=0.0), NOW_S) == Stay(), "it gives again"


def test_a_silent_peer_counts_as_dead_in_the_time_that_its_rate_allows() -> None:
    assert silence_s(0.0, 5.0) == 5.0, "nothing is known of it"
    assert silence_s(0.001, 5.0) == LEAST_SILENCE_S
    assert silence_s(0.1, 5.0) == 0.1 * SILENT_CHUNKS
    assert silence_s(2.0, 5.0) == 5.0
    assert silence_s(0.001, 0.5) == 0.5, "the deadline that is set is never exceeded"


def answers(rate: float = USUAL, **landed: int | None) -> Answers:
    return Answers(rate, VIEW.next, landed)


def late_answers(**landed: int | None) -> Answers:
    return Answers(0.0, VIEW.next, landed, late=True)


NEAR = VIEW.next + LAG_CHUNKS
FAR = VIEW.next + int(LAG_S * USUAL / CHUNK)
"""The first chunks that do not count as ahead, for a slow source and for one of the usual rate."""
QUICK = USUAL
CRAWL = CHUNK * 1.0


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param(answers(a=110, b=FAR, c=FAR), Stay(), id="nobody is far enough ahead for this rate"),
        pytest.param(answers(CRAWL, a=110, b=NEAR), Stay(), id="nobody is far enough ahead for any rate"),
        pytest.param(
            answers(CRAWL, a=110, b=NEAR + 1),
            Switch("b", "is slow (1e+03 bytes/s), b is ahead of it"),
            id="another is ahead",
        ),
        pytest.param(
            answers(a=110, b=FAR, c=FAR + 1),
            Switch("c", "is slow (1e+05 bytes/s), c is ahead of it"),
            id="the one after the next is ahead",
        ),
        pytest.param(answers(CRAWL, a=NEAR + 1, b=NEAR + 1), Probe("b"), id="so is the source: its upload may be slow"),
        pytest.param(
            answers(CRAWL, a=None, b=NEAR + 1),
            Switch("b", "is slow (1e+03 bytes/s), b is ahead of it"),
            id="another is ahead, and the source is silent",
        ),
        pytest.param(answers(a=110, b=None, c=FAR + 1), Drop("b", "b does not answer"), id="another does not answer"),
        pytest.param(answers(a=110), Stay(), id="others came after the question"),
    ],
)  # fmt: skip
def test_a_slow_peer_is_left_for_one_that_is_really_further(told: Answers, expected: Choice) -> None:
    assert choose(replace(VIEW, answers=told), NOW_S) == expected


STARVED = replace(VIEW, starved=True, fed_s=NOW_S - LATE_S - 0.1, looked_s=NOW_S, bytes=0)
"""Nothing has come for longer than from an honest source, and for less than the patience with three peers."""


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(replace(STARVED, fed_s=NOW_S - LATE_S), Stay(), id="an honest source may do so"),
        pytest.param(STARVED, Ask(late=True), id="too long: do others have more"),
        pytest.param(replace(STARVED, current=False), Stay(), id="they are being asked"),
        pytest.param(
            replace(STARVED, answers=late_answers(a=100, b=100, c=101)),
            Switch("c", "has nothing to give, c has", dry=True),
            id="one has a chunk more",
        ),
        pytest.param(
            replace(STARVED, answers=late_answers(a=100, b=None)),
            Drop("b", "b does not answer"),
            id="one is dead",
        ),
        pytest.param(replace(STARVED, answers=late_answers(a=100, b=100, c=100)), Stay(), id="all wait for the same"),
        pytest.param(
            replace(STARVED, fed_s=NOW_S, answers=late_answers(a=100, b=100, c=999)), Stay(), id="bytes came meanwhile"
        ),
    ],
)
def test_a_source_that_has_nothing_to_give_is_left_at_once_for_one_that_has(view: SourceView, expected: Choice) -> None:
    assert choose(view, NOW_S) == expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(replace(ALONE, began_s=LATE, answers=answers(QUICK, a=110)), Probe(THE_STORE), id="after a while"),
        pytest.param(replace(ALONE, answers=answers(QUICK, a=110)), Stay(), id="of the usual rate, but too early"),
        pytest.param(replace(ALONE, answers=answers(CRAWL, a=110)), Probe(THE_STORE), id="slower than usual"),
        pytest.param(replace(ALONE, usual=0.0, answers=answers(CRAWL, a=110)), Stay(), id="nothing known, too early"),
        pytest.param(
            replace(ALONE, began_s=LATE, usual=0.0, answers=answers(CRAWL, a=110)), Probe(THE_STORE), id="unknown, late"
        ),
        pytest.param(
            replace(ALONE, answers=answers(CRAWL, a=110), probed=frozenset({THE_STORE})),
            Stay(),
            id="it was probed before",
        ),
        pytest.param(
            replace(ALONE, answers=answers(CRAWL, a=110), next=1000 - PROBE_CHUNKS), Stay(), id="the end of the part"
        ),
        pytest.param(
            replace(VIEW, began_s=LATE, answers=answers(CRAWL, a=110, b=110, c=110)), Stay(), id="there are other peers"
        ),
    ],
)  # fmt: skip
def test_the_store_is_probed_once_where_no_other_peer_is(view: SourceView, expected: Choice) -> None:
    assert choose(view, NOW_S) == expected


@pytest.mark.parametrize(
    ("chunks", "rate", "expected"),
    [
        pytest.param(PROBE_CHUNKS - 1, 9 * USUAL, Stay(), id="not finished"),
        pytest.param(PROBE_CHUNKS, 2 * USUAL, Switch("b", "is slow (1e+05 bytes/s), b is not"), id="twice as fast"),
        pytest.param(PROBE_CHUNKS, 1.9 * USUAL, EndProbe(), id="not twice as fast"),
    ],
)
def test_a_probe_must_prove_twice_as_fast(chunks: int, rate: float, expected: Choice) -> None:
    probe = ProbeView(chunks, rate, rate_before=USUAL)
    assert choose(replace(VIEW, source="b", probe=probe), NOW_S) == expected


def test_a_probe_with_nobody_to_leave_is_just_over() -> None:
    probe = ProbeView(PROBE_CHUNKS, 9 * USUAL, rate_before=USUAL)
    assert choose(replace(AT_STORE, probe=probe), NOW_S) == EndProbe()


def test_a_probe_is_not_looked_at_itself() -> None:
    probed = replace(VIEW, bytes=0, probe=ProbeView(1, 0.0, USUAL))
    assert not look_is_due(probed, NOW_S) and choose(probed, NOW_S) == Stay()


BUSY = FailureView("a", "a is busy", busy=True, retry_s=0.0, tries=0, paused_s=0.0, chunk_deadline_s=2.0)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(BUSY, Retry(BUSY_PAUSE_S), id="it does not say when"),
        pytest.param(replace(BUSY, retry_s=1.0), Retry(1.0), id="it says when"),
        pytest.param(replace(BUSY, retry_s=999.0), Retry(2.0), id="within one deadline"),
        pytest.param(replace(BUSY, retry_s=1.0, tries=1, paused_s=1.5), Retry(0.5), id="within what is left of it"),
        pytest.param(replace(BUSY, tries=1, paused_s=2.0), Drop("a", "a is busy"), id="the deadline is over"),
        pytest.param(replace(BUSY, tries=BUSY_TRIES), Drop("a", "a is busy"), id="too often"),
        pytest.param(replace(BUSY, busy=False, why="a went away"), Drop("a", "a went away"), id="it failed"),
    ],
)
def test_a_busy_peer_is_asked_again_within_one_deadline_and_any_other_failure_ends_its_turn(
    view: FailureView, expected: Retry | Drop
) -> None:
    assert choose_after_failure(view) == expected
