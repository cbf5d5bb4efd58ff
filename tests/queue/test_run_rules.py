"""The run's rules are those of the learner that began last: nobody else changes them, and who tries is told."""

from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from echo_queue.config import Config
from echo_queue.config.keys import Key, keys_of
from echo_queue.errors import FencedError
from echo_queue.queue import RunRules
from echo_queue.queue.run_rules import RULE_KEYS, rules_of, words_of
from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness

RULES = RunRules(s=1, batch=2, lease_ms=60_000, pace=False)


def test_rules_are_written_only_where_there_are_none_and_who_brings_others_is_told(queue: Clients) -> None:
    assert queue.configure(RULES) == ()
    assert queue.configure(RULES) == ()
    told = queue.configure(replace(RULES, s=4, lease_ms=1_500))
    assert [str(one).partition("\n")[0] for one in told] == [
        "staleness.s: is 4 here and 1 in the run", "queue.lease_s: is 1.5 here and 60 in the run",
    ]  # fmt: skip
    assert "start its learner" in told[0].fix
    assert queue.status().rules == RULES


def another(key: Key) -> Any:
    """Returns a value of the key that is not its default."""
    value = key.field.get_default()
    match value:
        case bool():
            return not value
        case str():
            return next(word for word in get_args(key.field.annotation) if word != value)
        case float() if 0 < value < 1:
            return value / 2
    return value + 1


def test_every_rule_is_read_from_redis_as_a_configuration_states_it() -> None:
    stated: dict[str, Any] = {"run": {"name": "other", "dir": "other"}}
    for key in keys_of(Config):
        if key.path in RULE_KEYS and not key.listed:
            stated.setdefault(key.parent, {})[key.path.rpartition(".")[2]] = another(key)
    stated["model"]["max_new_tokens"], stated["rollout"]["group_size"] = 7, 3
    stated["staleness"] |= {"kappa": "auto", "late_deadline_s": 0.0105}
    stated["queue"]["lease_s"] = 2.5
    stated["mixture"] = [{"name": "math", "weight": 6}, {"name": "words", "weight": 0.5}]
    rules = RunRules.of(Config.model_validate(stated))
    assert [rule.name for rule in fields(rules) if getattr(rules, rule.name) == rule.default] == []
    assert (rules.late_deadline_ms, rules.lease_ms, rules.group_max_tokens) == (11, 2500, 21)
    assert rules.mixture == "math:6 words:0.5"
    words = [str(word) for word in words_of(rules)]
    assert rules_of(dict(zip(words[::2], words[1::2], strict=True))) == rules


def test_a_living_learner_keeps_its_bound_whatever_another_process_brings(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=20)
    lineage = queue.resume(rules=RULES).lineage
    harness.version = Version(lineage, 0)
    harness.publish(0)
    harness.complete(harness.lease(4))
    queue.configure(replace(RULES, s=9))  # another `services`, or a learner that has not begun
    for version in (1, 2):
        queue.advance(lineage, version, 0, 8.0)
    drained = harness.drain(4)
    assert (drained.groups, drained.late) == ((), 4)


def test_rules_change_with_the_lineage_and_the_learner_before_it_is_fenced(queue: Clients) -> None:
    QueueHarness(queue, RULES)
    first = queue.resume(rules=RULES).lineage
    changed = replace(RULES, s=3, batch=5)
    queue.resume(rules=changed)
    assert queue.status().rules == changed
    with pytest.raises(FencedError):
        queue.drain(first, 1)
    assert queue.configure(RULES) != ()
    assert queue.status().rules == changed
