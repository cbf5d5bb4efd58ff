"""What submitters and Celery workers do with the queue: the first part of `library/backlog.lua`."""

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
    """How far submissions are, for everybody who may look at a run."""

    def submission_status(self, name: str) -> SubmissionStatus | None:
        """How far the submission of a set is, chunk by chunk; None if no such set was declared."""

        def read() -> list[Any]:
            pipe = self._caller.client.pipeline(transaction=False)  # what is used of the first never changes
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
        """Names of the sets of which prompts are still to come, or in the backlog."""
        client, key = self._caller.client, self._caller.keys.backlog
        names = self._caller.persist("unserved_sets", lambda: client.zrange(key, 0, -1))
        return [replies.text(name) for name in names]


class Admission(Client):
    """The move from the backlog to the tasks, which other moves make as well."""

    def admit(self) -> int:
        """Backlog → tasks while bound and pace allow. How many were admitted."""
        return int(self._caller.call("admit"))


class SubmitterQueue(Submissions, Admission):
    """Declares sets, and brings their chunks into the backlog."""

    ROLE: ClassVar["Role"] = "submitter"

    @classmethod
    def connect(cls, config: "Config", deadline_s: float = DEADLINE_S) -> Self:
        return cls(Caller.connect(config, cls.ROLE, deadline_s))

    def declare(self, prompt_set: PromptSet, chunks: Sequence[Chunk]) -> bool:
        """Registers a set and its chunks, numbered 0, 1, … without gaps. False if it was declared before.

        Chunks that failed wait again, with the content given now. Raises `ServiceError` if the name stands
        for other prompts.
        """
        if [chunk.number for chunk in chunks] != list(range(len(chunks))) or not chunks:
            raise ValueError(f"chunks of {prompt_set.name} must be numbered 0, 1, … and there must be one")
        ranges = [part for chunk in chunks for part in (chunk.first, chunk.count, chunk.digest, chunk.ticket)]
        rules = (prompt_set.epochs, prompt_set.priority, prompt_set.order, prompt_set.seed, prompt_set.length_feature)
        return bool(self._caller.call("declare", prompt_set.name, prompt_set.source, *rules, *ranges))

    def submit(self, name: str, chunk: int, shard: PromptShard, buckets: bytes = b"") -> bool:
        """Chunk `chunk` of set `name` has become `shard`: its prompts join the backlog. False if they had before.

        `buckets`: a byte for each prompt, 1 … 63 alike for those whose answers may be of similar length, or 0.
        """
        return bool(self._caller.call("submit", name, chunk, shard.first, shard.count, shard.object, buckets))

    def reject(self, name: str, chunk: Chunk, reason: str) -> bool:
        """The chunk cannot be read, and why. False if it is settled, or has other content by now."""
        return bool(self._caller.call("reject", name, chunk.number, chunk.digest, reason))

    def submission_counts(self, name: str) -> SubmissionCounts | None:
        """How far the submission of a set is, in numbers; None if no such set was declared."""
        names = [field.name for field in fields(SubmissionCounts)]
        client, key = self._caller.client, self._caller.keys.set(name)
        words = self._caller.persist("submission_counts", lambda: client.hmget(key, names))
        return None if None in words else SubmissionCounts(*map(int, words))

    def waiting_chunk(self, name: str, number: int) -> WaitingChunk | None:
        """One chunk of a set; None if it is settled or was never declared."""

        def read() -> list[Any]:
            pipe = self._caller.client.pipeline(transaction=True)
            pipe.hmget(self._caller.keys.set(name), "source", "feature")
            pipe.hget(self._caller.keys.chunks(name), str(number))
            return pipe.execute()

        (source, feature), mark = self._caller.persist("waiting_chunk", read)
        chunk = replies.waiting_chunk_of(number, mark) if mark else None
        return None if chunk is None else WaitingChunk(replies.text(source), replies.text(feature or b""), chunk)
