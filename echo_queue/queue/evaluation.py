"""The queue clients of evaluations: the moves of `library/evaluation.lua`, and what rounds have found out.

A round asks all prompts of some held-out sets of one version. Its tasks are leased and completed as others are, and are
never trained.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import redis

from echo_queue.queue import replies
from echo_queue.queue.caller import Client
from echo_queue.queue.lineage_client import LineageClient
from echo_queue.queue.types import ScoredTask
from echo_queue.records import Version

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role

READ_STEP = 32
"""The answers that one request reads: the server serves others between requests."""


class EvaluationQueue(LineageClient):
    """Begins rounds of evaluation, reads their answers and concludes them, as Redis user `learner`."""

    def evaluate(self, version: Version, sets: Sequence[str]) -> int | None:
        """Begins a round of evaluation: all prompts of these held-out sets are asked of `version`, and of no other.

        Returns the round's number, also if a call before has begun it; None if another one is under way, a set has not
        arrived whole, or the server is full.
        """
        asked, prompts, words = -1, 0, (self._lineage, *version, *sets)
        while asked < prompts:
            (answer,) = self._caller.move("evaluate", [("evaluate", *words)], words, optional=True)
            if isinstance(answer, redis.OutOfMemoryError) or not answer:
                return None
            number, asked, prompts = answer
        return int(number)

    def scored(self, after: str = "") -> list[ScoredTask]:
        """Returns the next tasks of the round under way that are answered or failed, at most 32, behind that entry.

        Bad answers are sent back and left out. An empty list means that there are no more yet.
        """
        found: list[ScoredTask] = []
        while not found and (rows := self._caller.persist("scored", partial(self._rows, after))):
            found = [one for *row, fine in rows if fine and (one := self._scored(*row)) is not None]
            after = replies.text(rows[-1][0])
        return found

    def _rows(self, after: str) -> list[tuple[bytes, dict[bytes, bytes], bool]]:
        """Returns entries and fields of `scored`, and whether `open` says so: a worker's user may make up others."""
        client: Any = self._caller.client
        keys = self._caller.keys
        rows = client.xrange(keys.scored, f"({after}" if after else "-", "+", count=READ_STEP)
        places = client.hmget(keys.open, [words.get(b"id", b"") for _, words in rows]) if rows else []
        said = [(place or b"").split(b" ")[:2] for place in places]
        return [(*row, place == [b"scored", row[0]]) for row, place in zip(rows, said, strict=True)]

    def _scored(self, entry: bytes, words: Mapping[bytes, bytes]) -> ScoredTask | None:
        if b"reason" in words:
            return replies.scored_of(entry, words, None)
        group, _ = self._group_or_rejected(words[b"id"], entry, words)
        return None if group is None else replies.scored_of(entry, words, group)

    def conclude(self, number: int, lines: Sequence[bytes]) -> None:
        """Ends a round once its results are durable: all of its tasks leave the queue, answered or not.

        `lines`: what it found out, one JSON document for each set, for everyone who may read the run. A round that is
        not under way any more is left alone.
        """
        more = True
        while more:
            more, refs = self._caller.call("conclude", self._lineage, number, *lines)
            self._payloads.discard(refs)


class Evaluations(Client):
    """Reads what rounds of evaluation have found out."""

    ROLE: ClassVar["Role"] = "monitor"

    def lines(self, count: int = 1000) -> list[bytes]:
        """Returns what the newest rounds found out: `count` JSON documents, one for each set of each, oldest first."""
        client, key = self._caller.client, self._caller.keys.evaluations
        rows = self._caller.persist("evaluations", lambda: client.xrevrange(key, count=count))
        return [words[b"line"] for _, words in reversed(rows)]
