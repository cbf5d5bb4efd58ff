"""The run rules: the key that each comes from, their words in Redis, and where rules that a process brings differ.

A rule of seconds is in whole milliseconds. A learner that begins brings its rules; nobody else changes them.
"""

import math
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from echo_queue.config import Config
from echo_queue.config.keys import keys_of, value_of
from echo_queue.errors import Problem
from echo_queue.records.group_codec import GROUP_MAX_BYTES

DEFAULTS = {key.path: key.field.get_default() for key in keys_of(Config)}


def _rule(path: str) -> Any:
    """Makes the field of a rule that is the key at `path`."""
    return field(default=_as_rule(path, DEFAULTS[path]), metadata={"path": path, "setting": path})


def _as_rule(path: str, value: Any) -> Any:
    return math.ceil(1000 * value) if path.endswith("_s") else value


@dataclass(frozen=True)
class RunRules:
    """The run rules, kept in Redis so that every role obeys the same ones: those of the learner that began last.

    Each says which key it is. `batch`: B, groups per update. `group_max_tokens`: the limit for all samples of a group
    together. `mixture`: `name:weight` of each component, with spaces between; empty without one. `kappa` and
    `keep_open` are shown, and the queue does not use them.
    """

    s: int = _rule("staleness.s")
    batch: int = _rule("learner.batch_groups")
    kappa: int | Literal["auto"] = _rule("staleness.kappa")
    lease_ms: int = _rule("queue.lease_s")
    max_attempts: int = _rule("queue.max_attempts")
    pace: bool = _rule("staleness.pace")
    late: Literal["requeue", "wait"] = _rule("staleness.late")
    late_deadline_ms: int = _rule("staleness.late_deadline_s")
    group_max_bytes: int = _rule("queue.group_max_bytes")
    group_max_tokens: int = field(
        default=GROUP_MAX_BYTES // 8,
        metadata={"path": "group_max_tokens", "setting": "rollout.group_size * model.max_new_tokens"},
    )
    longest_first: bool = _rule("queue.longest_first")
    curriculum: Literal["off", "mopps", "dopr"] = _rule("selection.curriculum")
    curriculum_window: int = _rule("selection.curriculum_window")
    reward_failure: float = _rule("selection.reward_failure")
    reward_success: float = _rule("selection.reward_success")
    keep_open: bool = _rule("run.keep_open")
    evaluation_share: float = _rule("rollout.evaluation_share")
    mixture: str = field(default="", metadata={"path": "mixture_weights", "setting": "mixture.weight"})

    @classmethod
    def of(cls, settings: BaseModel) -> "RunRules":
        """Returns the rules that a configuration states, or a part of one: what it lacks has its default."""
        return cls(**{rule.name: _stated(settings, rule) for rule in fields(cls)})


WORDS = TypeAdapter(RunRules)
RULE_KEYS = frozenset(word for rule in fields(RunRules) for word in rule.metadata["setting"].split(" * "))
"""The keys that rules come from."""


def _stated(settings: BaseModel, rule: Field[Any]) -> Any:
    path = rule.metadata["path"]
    try:
        return _as_rule(path, value_of(settings, path))
    except AttributeError:
        return rule.default


def words_of(rules: RunRules) -> list[str | int | float]:
    """Returns the fields of the `rules` hash, as name, word, name, word …"""
    return [word for name, value in asdict(rules).items() for word in (name, _word(value))]


def _word(value: Any) -> str | int | float:
    return str(value).lower() if isinstance(value, bool) else value


def rules_of(words: Mapping[str, str]) -> RunRules:
    """Reads the `rules` hash. Raises a `ValueError` for words that no learner has written."""
    return WORDS.validate_python(words)


def differences(brought: RunRules, kept: RunRules) -> tuple[Problem, ...]:
    """Returns a problem for each rule that was brought in vain, because the run keeps another."""
    fix = "the run keeps its rules; to change them, start its learner with the configuration that has them"
    return tuple(
        Problem(rule.metadata["setting"], f"is {_shown(rule, brought)} here and {_shown(rule, kept)} in the run", fix)
        for rule in fields(RunRules)
        if getattr(brought, rule.name) != getattr(kept, rule.name)
    )


def _shown(rule: Field[Any], rules: RunRules) -> str:
    value = getattr(rules, rule.name)
    return f"{value / 1000:g}" if rule.metadata["path"].endswith("_s") else str(value) or "empty"
