"""The plain words that stand beside a payload in Redis: told with it, and compared with it when it is read back."""

from echo_queue.records import Group, PartialGroup, partial_codec

COMPLETE_WORDS = ("id", "attempt", "oldest", "newest", "lineage", "samples", "tokens", "reward")
"""What `complete` is told of a group, in this order, between the worker and the payload; `worker.lua` says the same."""
PROGRESS_WORDS = ("id", "oldest", "newest", "lineage", "tokens")
"""What `progress` is told of the partial rollouts of a task, in this order, at the same place."""
UNCHECKED_WORDS = ("attempt", "reward")
"""Words of a replay entry that need not be those of its content: the attempt is the task's, the mean for people."""


def entry_of(group: Group) -> dict[str, str]:
    """The plain fields of a group's replay entry, as its content tells them."""
    values = {
        "id": group.task,
        "set": group.set,
        "worker": group.worker,
        "epoch": group.epoch,
        "index": group.index,
        "attempt": group.attempt,
        "oldest": group.oldest,
        "newest": group.newest,
        "lineage": group.lineage,
        "samples": len(group.samples),
        "tokens": sum(len(sample.tokens) for sample in group.samples),
        "reward": f"{sum(sample.reward for sample in group.samples) / len(group.samples):.4f}",
    }
    return {name: str(value) for name, value in values.items()}


def told_of(partials: PartialGroup) -> tuple[str, int, int, int, int]:
    """The words of `PROGRESS_WORDS`."""
    tokens = partial_codec.tokens(partials)
    oldest, newest = partial_codec.versions(partials) if tokens else (0, 0)
    return partials.task, oldest, newest, partials.lineage, tokens
