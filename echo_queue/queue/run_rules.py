"""Says where rules that a process brings differ from those of the run, which only a learner that begins may change."""

from dataclasses import asdict

from echo_queue.errors import Problem
from echo_queue.queue.types import RunRules

SETTINGS = {
    "s": "staleness.s",
    "batch": "learner.batch_groups",
    "kappa": "staleness.kappa",
    "lease_ms": "queue.lease_s",
    "max_attempts": "queue.max_attempts",
    "pace": "staleness.pace",
    "late": "staleness.late",
    "late_deadline_ms": "staleness.late_deadline_s",
    "group_max_bytes": "queue.group_max_bytes",
    "group_max_tokens": "rollout.group_size * model.max_new_tokens",
    "longest_first": "queue.longest_first",
    "curriculum": "selection.curriculum",
    "curriculum_window": "selection.curriculum_window",
    "reward_failure": "selection.reward_failure",
    "reward_success": "selection.reward_success",
    "keep_open": "run.keep_open",
}
"""The setting that each rule comes from; one of milliseconds is in seconds there."""


def differences(brought: RunRules, kept: RunRules) -> tuple[Problem, ...]:
    """Returns a problem for each rule that was brought in vain, because the run keeps another."""
    fix = "the run keeps its rules; to change them, start its learner with the configuration that has them"
    values = zip(asdict(brought).items(), asdict(kept).values(), strict=True)
    return tuple(
        Problem(SETTINGS[name], f"is {_shown(name, new)} here and {_shown(name, old)} in the run", fix)
        for (name, new), old in values
        if new != old
    )


def _shown(name: str, value: object) -> str:
    return f"{value / 1000:g}" if name.endswith("_ms") and isinstance(value, int) else str(value)
