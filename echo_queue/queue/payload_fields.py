"""The plain fields beside a payload in Redis: they are sent with it, and compared with it when it is read back."""

from echo_queue.records import Group, PartialGroup, partial_codec

COMPLETE_WORDS = ("id", "attempt", "oldest", "newest", "lineage", "samples", "tokens", "reward")
"""The arguments of `complete` between the worker and the payload, in this order; `completion.lua` states the same."""
PROGRESS_WORDS = ("id", "oldest", "newest", "lineage", "tokens", "mark", "after", "keep")
"""The arguments of `progress` between the worker and the payload, in this order; `partials.lua` states the same."""
UNCHECKED_WORDS = ("attempt", "reward")
"""Fields of a replay entry that may differ from its content: the attempt is the task's, the mean reward for people."""


def entry_fields(group: Group) -> dict[str, str]:
    """Returns the plain fields of a group's replay entry, computed from its content."""
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


def progress_fields(partials: PartialGroup) -> tuple[str, int, int, int, int]:
    """Returns the first five values of `PROGRESS_WORDS` for a task's partial rollouts."""
    tokens = partial_codec.tokens(partials)
    oldest, newest = partial_codec.versions(partials) if tokens else (0, 0)
    return partials.task, oldest, newest, partials.lineage, tokens
