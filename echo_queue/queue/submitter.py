"""The queue client of submitters and Celery workers: the moves of `library/submission.lua`, and `admit`."""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import redis
from blake3 import blake3

from echo_queue.errors import Problem, PromptError
from echo_queue.queue import replies
from echo_queue.queue.caller import DEADLINE_S, Caller, Client
from echo_queue.queue.types import Chunk, PromptSet, SubmissionCounts, SubmissionStatus, WaitingChunk
from echo_queue.records import PromptShard

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role

SET_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
"""A set's name is part of task ids and of object names. The server checks it, too (`library/submission.lua`)."""
REFUSED = "refused"
"""The kind of event that says why a set was not submitted."""
EVENTS_KEPT = 1_000
"""As `library/state.lua` has it."""
LONGEST_REASON = 500


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
        """Returns the names of the sets to train on that have prompts in the backlog, or still to be submitted."""
        client, key = self._caller.client, self._caller.keys.backlog
        names = self._caller.persist("unserved_sets", lambda: client.zrange(key, 0, -1))
        return [replies.text(name) for name in names]


class Admission(Client):
    """The move `admit` from the backlog to the tasks (`library/backlog.lua`), which other moves make as well."""

    def admit(self, *, optional: bool = False) -> int:
        """Moves prompts from the backlog to tasks while bound and pace allow. Returns how many were admitted.

        Each call of the server moves or passes a bounded number of prompts, so that others are served in between.
        `optional`: a full server is not waited for, and nothing more is admitted.
        """
        admitted, more = 0, True
        while more:
            (answer,) = self._caller.move("admit", [("admit",)], optional=optional)
            if isinstance(answer, redis.OutOfMemoryError):
                break
            moved, more = answer
            admitted += moved
        return admitted


class SubmitterQueue(Submissions, Admission):
    """Declares sets and brings their chunks into the backlog, as Redis user `submitter`.

    Its moves are those of `library/submission.lua` and `library/backlog.lua`.
    """

    ROLE: ClassVar["Role"] = "submitter"

    @classmethod
    def connect(cls, config: "Config", deadline_s: float = DEADLINE_S) -> Self:
        """Returns a client with a tested connection to the configured run."""
        return cls(Caller.connect(config, cls.ROLE, deadline_s))

    def declare(self, prompt_set: PromptSet, chunks: Sequence[Chunk]) -> bool:
        """Registers a set and its chunks, numbered 0, 1, … without gaps. Returns False if it was declared before.

        Of a set that was declared before, chunks that failed wait again, with the content given now, and the priority
        becomes the one given now. Without chunks it keeps its prompts. Raises `PromptError` for a name that no set may
        have, and if a set of this name has other prompts, here or in checkpoints of the run.
        """
        if not SET_NAME.fullmatch(prompt_set.name):
            what = f"{prompt_set.name[:100]!r} is no name of a set"
            raise PromptError(Problem("prompts.set", what, 'choose at most 64 of a-z, 0-9, "_", "." and "-"'))
        if [chunk.number for chunk in chunks] != list(range(len(chunks))):
            raise ValueError(f"chunks of {prompt_set.name} must be numbered 0, 1, …")
        ranges = [part for chunk in chunks for part in (chunk.first, chunk.count, chunk.digest, chunk.ticket)]
        rules = (prompt_set.epochs, prompt_set.priority, prompt_set.order, prompt_set.seed, prompt_set.length_feature)
        words = prompt_set.name, prompt_set.source, *rules, digest_of(chunks)
        return bool(self._caller.call("declare", *words, *ranges))

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

    def tell_refusal(self, name: str, why: str) -> None:
        """Notes in `events`, for people, why a set was refused before it was declared. A wrong name is not noted."""
        if SET_NAME.fullmatch(name):
            client, key = self._caller.client, self._caller.keys.events
            words: Any = {"kind": REFUSED, "what": f"{name} {why[:LONGEST_REASON]}"}
            self._caller.persist("tell refusal", lambda: client.xadd(key, words, maxlen=EVENTS_KEPT, approximate=True))

    def takes(self, component: str = "") -> bool:
        """Returns whether new sets may be declared, of a component if one is named.

        A learner must have begun on this server, and told it whose prompts checkpoints hold as trained. The mixture
        that it brought must have the component, unless the run is finished: then the next learner may bring it.
        """
        client, keys = self._caller.client, self._caller.keys

        def read() -> list[Any]:
            pipe = client.pipeline(transaction=True)
            pipe.hmget(keys.state, "lineage", "finished")
            pipe.hget(keys.rules, "mixture")
            return pipe.execute()

        (lineage, finished), mixture = self._caller.persist("takes", read)
        names = [word.partition(":")[0] for word in replies.text(mixture or b"").split()]
        known = not component or component in names
        return int(lineage or 0) > 0 and (known or finished is not None)

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


def digest_of(chunks: Sequence[Chunk]) -> str:
    """Returns the BLAKE3 digest of a set's prompts (hexadecimal), by the ranges and digests of its chunks."""
    lines = (f"{chunk.first} {chunk.count} {chunk.digest}\n" for chunk in chunks)
    return blake3("".join(lines).encode()).hexdigest()
