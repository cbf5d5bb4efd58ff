"""What a worker has stored of its tasks' partial rollouts, so that it need send only what is new.

- A partial rollout is sent as a segment behind those sent before if it continues them, token by token; else as a whole.
- The last segments are sent anew as one once they are many or, if there is a store, large. A large one goes to the
  store and stays there as it is. So a task of any length has few segments, and each token is sent two or three times.
- A reply that is lost, another worker that held the task meanwhile, or a Redis that was set back leaves the queue with
  other segments than this table says. The queue notices it by their mark, and the worker sends the whole.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, NamedTuple

from echo_queue.queue.payload_fields import progress_fields
from echo_queue.queue.payloads import mark_after
from echo_queue.queue.types import StoredPartial
from echo_queue.records import PartialGroup, PartialSegment
from echo_queue.records.segments import continues, cut, lengths

TAIL_MAX = 64
"""The most segments that are sent before they are sent anew as one."""
TOKEN_BYTES = 8
"""A token and its log-probability, in a segment."""


@dataclass(frozen=True, eq=False)
class Settled:
    """The segments that stay as they are: their number and mark, and the tokens [G] that they hold of each sample."""

    segments: int = 0
    mark: str = ""
    begins: tuple[int, ...] = ()


NOTHING_SETTLED = Settled()


@dataclass(frozen=True, eq=False)
class Sent:
    """A partial rollout as the queue has it."""

    partials: PartialGroup
    segments: int
    mark: str
    settled: Settled


class Sending(NamedTuple):
    """A call of `progress`: its arguments behind the worker's name, and what the queue has once the call is made."""

    words: tuple[Any, ...]
    sent: Sent


@dataclass(frozen=True, eq=False)
class Step:
    """A call that is to be made: one segment with what follows `before`, in place of everything else behind that.

    `after`: the mark of what the queue has. `settled`: the settled segments, and with them the new one if `settles`.
    """

    partials: PartialGroup
    before: Settled
    after: str
    settled: Settled
    settles: bool

    @property
    def segment(self) -> PartialSegment:
        return cut(self.partials, self.before.begins)

    def stored_as(self, kind: str, payload: bytes) -> Sending:
        """Returns the call, with the segment as `Payloads.keep_segment` has stored it."""
        mark = mark_after(self.before.mark, kind, payload)
        words = *progress_fields(self.partials), mark, self.after, self.before.segments, kind, payload
        now = Settled(self.before.segments + 1, mark, lengths(self.partials))
        settled = now if self.settles or kind == "ref" else self.settled
        return Sending(words, Sent(self.partials, now.segments, mark, settled))


class SentProgress:
    """The partial rollouts that the queue has of each worker's tasks. Any thread may use it.

    `inline_max_bytes`: segments above that go to the object store; None: there is no store.
    """

    def __init__(self, inline_max_bytes: int | None) -> None:
        self._inline_max_bytes = inline_max_bytes
        self._sent: dict[tuple[str, str], Sent] = {}

    def news(self, worker: str, partials: PartialGroup) -> Step | None:
        """Returns the call that stores what is new in `partials`; None if nothing is."""
        sent = self._sent.get((worker, partials.task))
        if sent is None or not continues(partials, sent.partials):
            return self.whole(partials)
        if _same(partials, sent.partials):
            return None
        if sent.segments - sent.settled.segments >= TAIL_MAX or self._is_large(partials, sent.settled):
            return self._settling(partials, sent.settled, sent.mark)
        last = Settled(sent.segments, sent.mark, lengths(sent.partials))
        return Step(partials, last, sent.mark, sent.settled, settles=False)

    def whole(self, partials: PartialGroup) -> Step:
        """Returns the call that stores all of `partials` in place of what the queue has."""
        return self._settling(partials, NOTHING_SETTLED, "")

    def note(self, worker: str, sent: Sent) -> None:
        """Notes what the queue has of a task."""
        self._sent[worker, sent.partials.task] = sent

    def note_leased(self, worker: str, task: str, kept: StoredPartial | None, partials: PartialGroup | None) -> None:
        """Notes what the queue has of a task that `worker` has just leased; None if it begins from scratch."""
        if kept is None or partials is None:
            self._sent.pop((worker, task), None)
            return
        settled = Settled(len(kept.segments), kept.mark, lengths(partials))
        self.note(worker, Sent(partials, settled.segments, settled.mark, settled))

    def keep_only(self, worker: str, tasks: Container[str]) -> None:
        """Forgets what `worker` sent of other tasks than these, which it holds."""
        for key in [key for key in list(self._sent) if key[0] == worker and key[1] not in tasks]:
            self._sent.pop(key, None)

    def _is_large(self, partials: PartialGroup, settled: Settled) -> bool:
        """Returns whether what follows the settled segments belongs into the store."""
        size = TOKEN_BYTES * (sum(lengths(partials)) - sum(settled.begins))
        return self._inline_max_bytes is not None and size > self._inline_max_bytes

    def _settling(self, partials: PartialGroup, settled: Settled, after: str) -> Step:
        """With a store, only what lies there is settled: the others grow until they are large."""
        return Step(partials, settled, after, settled, settles=self._inline_max_bytes is None)


def _same(partials: PartialGroup, before: PartialGroup) -> bool:
    """Returns whether nothing has changed; `partials` continues `before`."""
    ends = ([sample.finish for sample in one.samples] for one in (partials, before))
    return lengths(partials) == lengths(before) and next(ends) == next(ends)
