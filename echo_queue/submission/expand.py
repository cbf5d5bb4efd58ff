"""Brings one chunk from its source to the backlog: reads, checks, stores and submits it.

- Every step may be repeated, and a chunk that is done already is left alone, so a message that arrives twice, or late,
  changes nothing.
- A problem that a person must fix is recorded with the chunk (`reject`), which stops it. A service that is away is
  raised as an error, and the reconciler sends the chunk again.
"""

import traceback

import orjson

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.errors import EchoQueueError, Problem, ServiceError
from echo_queue.queue import Chunk, SubmitterQueue
from echo_queue.submission import shards
from echo_queue.submission.length_features import buckets, refuse_featureless
from echo_queue.submission.length_limits import PromptLimits, refuse_unfit
from echo_queue.submission.needed_columns import NOTHING, NeededColumns, refuse_lacking
from echo_queue.submission.sources.registry import open_source
from echo_queue.submission.sources.rows import BadRow


def expand(
    queue: SubmitterQueue,
    store: shards.Writes,
    limits: PromptLimits | None,
    name: str,
    number: int,
    *,
    needed: NeededColumns = NOTHING,
    own: str = "",
    bucket: StoreEndpoint | None = None,
) -> bool:
    """Adds chunk `number` of set `name` to the backlog. `needed`: what the reward needs of each row.
    `own`: the source that this machine's configuration names, `bucket`: the run's own store (`open_source`).

    Returns False if that was done before, or the chunk was refused. Raises `ServiceError` if Redis or the store fails.
    """
    if (waiting := queue.waiting_chunk(name, number)) is None:
        return False
    chunk = waiting.chunk
    try:
        source = open_source(waiting.source, own, bucket)
        rows = source.read(chunk)
        refuse_unfit(limits, source, chunk, rows)
        refuse_featureless(waiting.length_feature, source, chunk, rows)
        refuse_lacking(needed, source, chunk, rows)
        shard = shards.write(store, name, number, chunk.first, rows)
    except ServiceError:
        raise
    except EchoQueueError as error:
        return _reject(queue, name, chunk, *error.problems)
    except BadRow as row:
        return _reject(queue, name, chunk, Problem(waiting.source, row.what, row.fix))
    except Exception:
        # A chunk that is sent again would fail again, for ever.
        what = f"hits a defect of this program:\n{traceback.format_exc(limit=-8)}"
        return _reject(queue, name, chunk, Problem(waiting.source, what, "report it; other chunks are not affected"))
    return queue.submit(name, number, shard, buckets(rows, waiting.length_feature))


def problems_of(reason: str) -> list[Problem]:
    """Returns the problems that `expand` recorded with a failed chunk."""
    return [Problem(*parts) for parts in orjson.loads(reason)]


def _reject(queue: SubmitterQueue, name: str, chunk: Chunk, *problems: Problem) -> bool:
    reason = orjson.dumps([(problem.where, problem.what, problem.fix) for problem in problems]).decode()
    queue.reject(name, chunk, reason)
    return False
