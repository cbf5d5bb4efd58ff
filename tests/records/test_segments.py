"""Partial rollouts that were cut into segments come together as they were, and what continues another is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_queue.queue.payloads import Payloads, mark_after
from echo_queue.queue.types import StoredPartial
from echo_queue.records import Observed, PartialGroup, PartialSample, Span
from echo_queue.records import partial_codec as codec
from echo_queue.records.group_codec import CodecError
from echo_queue.records.segments import continues, cut, join, lengths


def partials(*versions: int, observed: tuple[Observed, ...] = ()) -> PartialGroup:
    """Two samples, the first with a token for each of these versions, which do not fall; the second is half as long."""
    spans = [Span(at, version) for at, version in enumerate(versions) if version not in versions[:at]]
    tokens = np.arange(len(versions), dtype=np.int32)
    logprobs = np.full(len(versions), -0.5, np.float32)
    for start, end in observed:
        logprobs[start:end] = 0.0
    first = PartialSample(tokens, logprobs, tuple(spans), observed)
    return PartialGroup("a/0/0", 0, (first, begun(first, len(versions) // 2)))


def begun(sample: PartialSample, length: int) -> PartialSample:
    """The first tokens of a sample."""
    return PartialSample(
        sample.tokens[:length],
        sample.logprobs[:length],
        tuple(span for span in sample.spans if span.start < length),
        tuple(part for part in sample.observed if part.end <= length),
    )


@given(
    versions=st.lists(st.integers(0, 3), min_size=1, max_size=12).map(sorted),
    ends=st.lists(st.integers(0, 12), max_size=5).map(sorted),
)
def test_what_was_cut_comes_together_as_it_was(versions: list[int], ends: list[int]) -> None:
    whole = partials(*versions)
    before, segments = (0, 0), []
    for end in [*ends, len(versions)]:
        part = replace(whole, samples=tuple(begun(sample, end) for sample in whole.samples))
        assert continues(whole, part)
        segments.append(codec.decode(codec.encode(cut(part, before))))
        before = lengths(part)
    assert codec.encode(cut(join(segments))) == codec.encode(cut(whole))


def test_observations_come_together_too() -> None:
    whole = partials(0, 0, 0, 0, 0, observed=(Observed(1, 3), Observed(4, 5)))
    head = replace(whole, samples=tuple(begun(sample, 3) for sample in whole.samples))
    assert join([cut(head), cut(whole, lengths(head))]).samples[0].observed == whole.samples[0].observed


def test_a_sample_to_which_the_environment_has_answered_goes_on() -> None:
    ended = replace(partials(0, 0), samples=tuple(replace(one, finish="stop") for one in partials(0, 0).samples))
    assert continues(partials(0, 0, 0), ended)
    assert join([cut(ended), cut(partials(0, 0, 0), lengths(ended))]).samples[0].finish is None


def test_other_tokens_weights_or_lineages_continue_nothing() -> None:
    before, after = partials(0, 0), partials(0, 0, 1)
    first = after.samples[0]
    assert continues(after, before) and not continues(before, after)
    assert not continues(replace(after, lineage=1), before)
    assert not continues(replace(after, samples=after.samples[:1]), before)
    for changed in (
        replace(first, tokens=first.tokens[::-1]),
        replace(first, logprobs=first.logprobs * 2),
        replace(first, spans=(Span(0, 0), Span(1, 1))),
        replace(first, observed=(Observed(0, 1),)),
    ):
        assert not continues(replace(after, samples=(changed, after.samples[1])), before)


@pytest.mark.parametrize(
    "second",
    [partials(0, 0, 0), partials(2, 2, 2, observed=(Observed(2, 3),))],
    ids=["older weights", "two observations that meet"],
)
def test_what_fits_only_by_its_counts_is_refused_when_it_is_read(second: PartialGroup) -> None:
    first = partials(2, 2, observed=(Observed(1, 2),))
    pieces = [codec.encode(cut(first)), codec.encode(cut(second, lengths(first)))]
    mark = ""
    for piece in pieces:
        mark = mark_after(mark, "segment", piece)
    told = StoredPartial(0, 2, 0, 4, mark, tuple(("segment", piece) for piece in pieces))
    with pytest.raises(CodecError):
        Payloads().partials("a/0/0", told)
