"""Keeps the values of labels few: what workers write, and what prompts died of, may be any text.

The largest are kept by their names; the rest is one value, `OTHER`, so that sums stay right.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from echo_queue.queue import DeadTask, WorkerStatus
from echo_queue.queue.reasons import in_one_line

OTHER = "other"
MOST_POOLS = 64
MOST_CAUSES = 8
LONGEST = 64
"""Characters of a label's value that somebody else chose."""
CAUSE_ENDS = re.compile(r":(?:\s|$)| →")


def few(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """Returns the `most` largest counts by name, and the sum of the others as `OTHER`, if there are any."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ordered[:most])
    if rest := sum(count for _, count in ordered[most:]):
        kept[OTHER] = kept.get(OTHER, 0) + rest
    return kept


def dead_by_cause(dead: Sequence[DeadTask], total: int) -> dict[str, int]:
    """Returns the number of dead prompts by cause, `total` of them together; of those whose reason was not read, and of
    rare causes, as `OTHER`.
    """
    found = few(Counter(cause_of(task.reason) for task in dead), MOST_CAUSES)
    if unread := total - sum(found.values()):
        found[OTHER] = max(0, found.get(OTHER, 0) + unread)
    return found


def cause_of(reason: str) -> str:
    """Returns the beginning of a reason, up to its first colon: the name of an exception, or of what is wrong.

    What follows names a value, a prompt or a worker.
    """
    return CAUSE_ENDS.split(in_one_line(reason), maxsplit=1)[0][:LONGEST]


def with_few_pools(workers: Iterable[WorkerStatus]) -> tuple[WorkerStatus, ...]:
    """Returns the workers, of which those of pools beyond `MOST_POOLS` name the pool `OTHER`."""
    workers = tuple(workers)
    sizes = Counter(worker.heartbeat.pool for worker in workers if worker.heartbeat)
    kept = few(sizes, MOST_POOLS)
    names = {pool: pool[:LONGEST] if pool in kept else OTHER for pool in sizes}
    if all(pool == name for pool, name in names.items()):
        return workers
    return tuple(
        replace(worker, heartbeat=replace(worker.heartbeat, pool=names[worker.heartbeat.pool]))
        if worker.heartbeat
        else worker
        for worker in workers
    )
