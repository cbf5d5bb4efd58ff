"""Partial rollouts in segments: each holds the tokens that a task's samples gained since the segment before.

`join(segments)` of what `cut` made is the partial rollout itself. A partial rollout that does not continue the one
before (`continues`) begins anew, as one segment.
"""

from collections.abc import Sequence

import numpy as np

from echo_queue.records import Observed, PartialGroup, PartialSample, PartialSegment, Span
from echo_queue.records.group_codec import refuse


def lengths(partials: PartialGroup) -> tuple[int, ...]:
    """Returns the number of tokens of each sample."""
    return tuple(len(sample.tokens) for sample in partials.samples)


def cut(partials: PartialGroup, begins: Sequence[int] = ()) -> PartialSegment:
    """Returns what follows the first `begins` [G] tokens of each sample; all of it by default."""
    starts = tuple(begins) or (0,) * len(partials.samples)
    gained = tuple(_after(*pair) for pair in zip(partials.samples, starts, strict=True))
    return PartialSegment(starts, PartialGroup(partials.task, partials.lineage, gained))


def continues(partials: PartialGroup, before: PartialGroup) -> bool:
    """Returns whether `partials` consists of what `before` holds, unchanged, and of further tokens."""
    pairs = zip(partials.samples, before.samples, strict=False)
    same = (partials.task, partials.lineage) == (before.task, before.lineage)
    return same and len(partials.samples) == len(before.samples) and all(_continues(*pair) for pair in pairs)


def join(segments: Sequence[PartialSegment]) -> PartialGroup:
    """Puts segments together, of which the first begins at token 0. Raises `CodecError` unless each fits the last."""
    whole = PartialGroup(segments[0].gained.task, segments[0].gained.lineage, ())
    parts: list[list[PartialSample]] = [[] for _ in segments[0].begins]
    ends = (0,) * len(parts)
    for segment in segments:
        gained = segment.gained
        if (gained.task, gained.lineage, segment.begins) != (whole.task, whole.lineage, ends):
            refuse(f"a segment of {gained.task} continues {segment.begins}; the one before ends at {ends}")
        ends = tuple(end + length for end, length in zip(ends, lengths(gained), strict=True))
        for sample, part in zip(parts, gained.samples, strict=True):
            sample.append(part)
    return PartialGroup(whole.task, whole.lineage, tuple(map(_joined, parts)))


def _after(sample: PartialSample, begin: int) -> PartialSample:
    spans = [span for span in sample.spans if span.start < begin][-1:] if begin < len(sample.tokens) else []
    spans += [span for span in sample.spans if span.start >= begin]
    return PartialSample(
        sample.tokens[begin:],
        sample.logprobs[begin:],
        tuple(Span(max(0, span.start - begin), span.version) for span in _without_repeats(spans, begin)),
        tuple(Observed(start - begin, end - begin) for start, end in sample.observed if start >= begin),
        sample.finish,
    )


def _without_repeats(spans: Sequence[Span], begin: int) -> Sequence[Span]:
    """Returns the spans from token `begin` on: the one before it counts only if no other begins there."""
    return spans[1:] if len(spans) > 1 and spans[1].start <= begin else spans


def _continues(sample: PartialSample, before: PartialSample) -> bool:
    length = len(before.tokens)
    spans = sample.spans[: len(before.spans)]
    return (
        len(sample.tokens) >= length
        and np.array_equal(sample.tokens[:length], before.tokens)
        and np.array_equal(sample.logprobs[:length], before.logprobs)
        and spans == before.spans
        and all(span.start >= length for span in sample.spans[len(before.spans) :])
        and sample.observed[: len(before.observed)] == before.observed
        and all(part.start >= length for part in sample.observed[len(before.observed) :])
    )


def _joined(parts: Sequence[PartialSample]) -> PartialSample:
    spans: list[Span] = []
    observed: list[Observed] = []
    begin = 0
    for part in parts:
        for start, version in part.spans:
            if spans and version < spans[-1].version:
                refuse(f"a partial rollout goes back from version {spans[-1].version} to {version}")
            if not spans or version > spans[-1].version:
                spans.append(Span(begin + start, version))
        for start, end in part.observed:
            if observed and begin + start == observed[-1].end:
                refuse("two observations have no sampled token between them")
            observed.append(Observed(begin + start, begin + end))
        begin += len(part.tokens)
    tokens = np.concatenate([part.tokens for part in parts])
    logprobs = np.concatenate([part.logprobs for part in parts])
    return PartialSample(tokens, logprobs, tuple(spans), tuple(observed), parts[-1].finish)
