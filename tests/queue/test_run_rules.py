"""The run's rules are those of the learner that began last: nobody else changes them, and who tries is told."""

from dataclasses import fields, replace

import pytest

from echo_queue.config import Config
from echo_queue.errors import FencedError
from echo_queue.queue import RunRules
from echo_queue.queue.run_rules import rules_of, words_of
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


def test_every_rule_is_read_from_redis_as_a_configuration_states_it() -> None:
    config = Config.model_validate(
        {
            "run": {"name": "other", "dir": "other", "keep_open": True},
            "model": {"max_new_tokens": 7},
            "rollout": {"group_size": 3},
            "staleness": {"s": 2, "kappa": "auto", "pace": False, "late": "wait", "late_deadline_s": 0.0105},
            "queue": {"lease_s": 2.5, "max_attempts": 9, "group_max_bytes": 65_536, "longest_first": False},
            "learner": {"batch_groups": 5},
            "selection": {"curriculum": "mopps", "curriculum_window": 8, "reward_failure": -0.5, "reward_success": 0.5},
        }
    )
    rules = RunRules.of(config)
    assert [rule.name for rule in fields(rules) if getattr(rules, rule.name) == rule.default] == []
    assert (rules.late_deadline_ms, rules.lease_ms, rules.group_max_tokens) == (11, 2500, 21)
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
