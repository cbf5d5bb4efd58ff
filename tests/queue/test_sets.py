"""A set's name means its prompts: others are refused under that name, and what does not matter to them may change."""

import pytest
import redis

from echo_queue.errors import PromptError
from echo_queue.queue import Chunk, Outcome, PromptSet, RunRules
from echo_queue.queue.submitter import digest_of
from echo_queue.records import BASE, PromptShard, Published, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness

OURS, OTHERS = [Chunk(0, 0, 4, digest="ours")], [Chunk(0, 0, 4, digest="others")]
KNOWN = {"p": digest_of(OURS)}


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "a\tb", "a/b", ".a", "A", "ü", "a" * 65, "a\x00b"])
def test_a_name_that_could_not_be_part_of_an_id_is_refused_by_client_and_server(queue: Clients, name: str) -> None:
    queue.configure(RULES)
    with pytest.raises(PromptError, match="is no name of a set"):
        queue.declare(PromptSet(name, "source"), OURS)
    words = name, "source", 1, 0, "sequential", 0, "", "digest", 0, 4, "ours", "{}"
    with pytest.raises(redis.ResponseError, match="a set cannot have this name"):
        queue.client.fcall("eq1_declare", 1, queue.keys.prefix, *words)
    assert queue.unserved_sets() == []


def test_a_repeated_drain_hands_out_the_same_whatever_its_set_is_called(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=0)
    harness.submit("0.a_b-c", 4)
    harness.complete(harness.lease(4))
    words = queue.keys.prefix, 0, 1, 2
    first, again = (queue.client.fcall("eq1_drain", 1, *words)[0] for _ in range(2))
    assert len(first) == 2 and first == again


def test_other_prompts_under_a_name_that_checkpoints_hold_are_refused_and_the_same_are_known(queue: Clients) -> None:
    """Redis was lost: only the checkpoint at which the learner begins still knows whose prompts its ids are."""
    queue.configure(RULES)
    lineage = queue.resume(Version(1, 5), floor=1, sets=KNOWN).lineage
    queue.commit(lineage, "0001/00000005", ["p/0/0", "p/0/1"])
    for _ in range(2):
        with pytest.raises(PromptError, match="checkpoints of this run hold other prompts under this name") as refused:
            queue.declare(PromptSet("p", "source"), OTHERS)
    assert "prompts.set" in refused.value.problems[0].fix
    assert queue.declare(PromptSet("p2", "source"), OTHERS)
    assert queue.declare(PromptSet("p", "source"), OURS)
    queue.publish(lineage, Published(Version(lineage, 5), "m", "d"))
    queue.submit("p", 0, PromptShard("shard", 0, 4))
    assert [task.id for task in queue.lease("w1", Version(lineage, 5), 9).tasks] == ["p/0/2", "p/0/3"]
    assert (queue.audit().ok, queue.audit().trained) == (True, 2)
    assert queue.set_digests(lineage, ["p", "p2", "unknown"]) == {
        "p": digest_of(OURS), "p2": digest_of(OTHERS), "unknown": "",
    }  # fmt: skip


def test_a_learner_does_not_begin_where_other_prompts_came_first_and_nothing_has_changed(queue: Clients) -> None:
    queue.configure(RULES)
    queue.declare(PromptSet("p", "source"), OTHERS)
    before = queue.status()
    with pytest.raises(PromptError, match="other prompts than those that checkpoints hold as trained") as refused:
        queue.resume(Version(1, 5), floor=1, rules=RunRules(s=7, batch=7), sets={"q": "unheard of", **KNOWN})
    assert "delete this run's keys in Redis" in refused.value.problems[0].fix
    assert (queue.status().learner, queue.status().rules) == (BASE, before.rules)
    assert queue.set_digests(0, ["q"]) == {"q": ""}


def test_a_set_whose_broken_chunk_was_mended_is_the_same_set_to_all_who_remember_it(queue: Clients) -> None:
    good, broken, mended = Chunk(0, 0, 2, "good"), Chunk(1, 2, 2, "broken"), Chunk(1, 2, 2, "mended")
    first, second = digest_of([good, broken]), digest_of([good, mended])
    queue.configure(RULES)
    queue.declare(PromptSet("p", "source"), [good, broken])
    queue.submit("p", 0, PromptShard("shard", 0, 2))
    queue.reject("p", broken, "unreadable")
    queue.declare(PromptSet("p", "source"), [good, mended])
    queue.submit("p", 1, PromptShard("shard", 2, 2))
    for stored in (first, f"{second} {first}"):  # by a checkpoint before it was mended, and by one after that
        lineage = queue.resume(sets={"p": stored}).lineage
        assert queue.set_digests(lineage, ["p"]) == {"p": f"{second} {first}"}
    queue.client.hset(queue.keys.digests, "p", first)  # Redis was set back to a time before that
    lineage = queue.resume(sets={"p": f"{second} {first}"}).lineage
    assert queue.set_digests(lineage, ["p"]) == {"p": f"{second} {first}"}


def test_a_priority_that_changed_is_applied(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=0)
    for name in ("a", "b", "c"):
        harness.submit(name, 8)
    assert not queue.declare(PromptSet("c", "source of c", priority=3), ())
    assert not queue.declare(PromptSet("b", "source of b", priority=2), [Chunk(0, 0, 8)])
    assert not queue.declare(PromptSet("b", "source of b", priority=-2), ())
    assert queue.unserved_sets() == ["c", "a", "b"]
    harness.check()


def test_what_does_not_matter_to_a_set_does_not_stop_it(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    harness.submit("b", 4, order="shuffled", seed=1)
    assert not queue.declare(PromptSet("a", "elsewhere", seed=7), [Chunk(0, 0, 4)])
    with pytest.raises(PromptError, match="seed is 1, not 7"):
        queue.declare(PromptSet("b", "elsewhere", order="shuffled", seed=7), [Chunk(0, 0, 4)])


def test_a_set_that_is_known_may_be_declared_without_its_source(queue: Clients) -> None:
    QueueHarness(queue, prompts=4)
    assert not queue.declare(PromptSet("a", "gone"), ())
    status = queue.submission_status("a")
    assert status is not None and (status.source, status.prompts, status.complete) == ("source of a", 4, True)
    with pytest.raises(PromptError, match="epochs is 1, not 2"):
        queue.declare(PromptSet("a", "gone", epochs=2), ())
    with pytest.raises(PromptError, match="it was never declared"):
        queue.declare(PromptSet("b", "gone"), ())


def test_what_an_operator_buried_stays_dead_though_its_worker_completes_it(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    tasks = harness.lease(1)
    assert queue.bury(tasks[0].id, "by hand")
    assert harness.complete(tasks) == [Outcome.dead]
    assert (queue.audit().dead, queue.status().ready, harness.count("dead_completion")) == (1, 0, 1)
    assert queue.revive([tasks[0].id]) == 1
    assert harness.complete(harness.lease(1)) == [Outcome.accepted]
