"""The queue client of submitters and Celery workers: the moves of `library/backlog.lua`."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from echo_queue.queue import replies
from echo_queue.queue.caller import DEADLINE_S, Caller, Client
from echo_queue.queue.types import Chunk, PromptSet, SubmissionCounts, SubmissionStatus, WaitingChunk
from echo_queue.records import PromptShard

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role


class Submissions(Client):
    """The progress of submissions, for every role that may read a run."""

    def submission_status(self, name: str) -> SubmissionStatus | None:
        """Returns the progress of a set's submission, chunk by chunk; None if no such set was declared."""

        def read() -> list[Any]:
            pipe = self._caller.client.pipeline(transaction=False)  # the fields used of the first reply never change
            pipe.hgetall(self._caller.keys.set(name))
            pipe.hgetall(self._caller.keys.chunks(name))
            return pipe.execute()

        words, marks = self._caller.persist("submission_status", read)
        if not words:
            return None
        return replies.submission_status_of(
            name, {replies.text(key): replies.text(value) for key, value in words.items()}, marks
        )

    def unserved_sets(self) -> list[str]:
        """Returns the names of the sets that have prompts in the backlog, or prompts still to be submitted."""
        client, key = self._caller.client, self._caller.keys.backlog
        names = self._caller.persist("unserved_sets", lambda: client.zrange(key, 0, -1))
        return [replies.text(name) for name in names]


class Admission(Client):
    """The move `admit` from the backlog to the tasks (`library/backlog.lua`), which other moves make as well."""

    def admit(self) -> int:
        """Moves prompts from the backlog to tasks while bound and pace allow. Returns how many were admitted."""
        return int(self._caller.call("admit"))


class SubmitterQueue(Submissions, Admission):
    """Declares sets and brings their chunks into the backlog, as Redis user `submitter`.

    Its moves are those of `library/backlog.lua`.
    """

    ROLE: ClassVar["Role"] = "submitter"

    @classmethod
    def connect(cls, config: "Config", deadline_s: float = DEADLINE_S) -> Self:
        """Returns a client with a tested connection to the configured run."""
        return cls(Caller.connect(config, cls.ROLE, deadline_s))

    def declare(self, prompt_set: PromptSet, chunks: Sequence[Chunk]) -> bool:
        """Registers a set and its chunks, numbered 0, 1, … without gaps. Returns False if it was declared before.

        Chunks that failed wait again, with the content given now. Raises `ServiceError` if a set of this name has other
        prompts.
        """
        if [chunk.number for chunk in chunks] != list(range(len(chunks))) or not chunks:
            raise ValueError(f"chunks of {prompt_set.name} must be numbered 0, 1, …, and there must be at least one")
        ranges = [part for chunk in chunks for part in (chunk.first, chunk.count, chunk.digest, chunk.ticket)]
        rules = (prompt_set.epochs, prompt_set.priority, prompt_set.order, prompt_set.seed, prompt_set.length_feature)
        return bool(self._caller.call("declare", prompt_set.name, prompt_set.source, *rules, *ranges))

    def submit(self, name: str, chunk: int, shard: PromptShard, buckets: bytes = b"") -> bool:
        """Adds the prompts of chunk `chunk` of set `name`, stored as `shard`, to the backlog.

        Returns False if they were there. `buckets`: one byte for each prompt. Prompts whose answers may have similar
        lengths share a bucket, 1 … 63; 0: no bucket. Empty: no prompt has one.
        """
        return bool(self._caller.call("submit", name, chunk, shard.first, shard.count, shard.object, buckets))

    def reject(self, name: str, chunk: Chunk, reason: str) -> bool:
        """Gives up a chunk that cannot be read, with the reason.

        Returns False if it is settled or has other content by now.
        """
        return bool(self._caller.call("reject", name, chunk.number, chunk.digest, reason))

    def submission_counts(self, name: str) -> SubmissionCounts | None:
        """Returns the progress of a set's submission in numbers; None if no such set was declared."""
        names = [field.name for field in fields(SubmissionCounts)]
        client, key = self._caller.client, self._caller.keys.set(name)
        words = self._caller.persist("submission_counts", lambda: client.hmget(key, names))
        return None if None in words else SubmissionCounts(*map(int, words))

    def waiting_chunk(self, name: str, number: int) -> WaitingChunk | None:
        """Returns a chunk that still has no shard; None if it is settled or was never declared."""

        def read() -> list[Any]:
            pipe = self._caller.client.pipeline(transaction=True)
            pipe.hmget(self._caller.keys.set(name), "source", "feature")
            pipe.hget(self._caller.keys.chunks(name), str(number))
            return pipe.execute()

        (source, feature), mark = self._caller.persist("waiting_chunk", read)
        chunk = replies.waiting_chunk_of(number, mark) if mark else None
        return None if chunk is None else WaitingChunk(replies.text(source), replies.text(feature or b""), chunk)
