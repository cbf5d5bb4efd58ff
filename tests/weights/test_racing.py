"""Learners that race: what is latest is never unfinished, never older than it was, never an old lineage's."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
from torch import Tensor

from echo_queue import weights
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import FencedError
from echo_queue.records import Published, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES
from tests.waiting import wait_until
from tests.weights.published_weights import VERIFIER, drifted, fetch, model, same, weight_publisher

LEARNERS = 4
VERSIONS = 6
"""The versions that the last learner publishes; each one before it publishes until it is fenced."""
TAKEN_OVER_AFTER = 2
"""The versions that a learner has published when the next one takes over, at some moment of its work on a further."""


def weights_of(version: Version) -> dict[str, Tensor]:
    """Other ones in each lineage, so that none passes for another's."""
    tensors = model()
    for number in range(version.number + 1):
        tensors = drifted(tensors, 100 * version.lineage + number)
    return tensors


@pytest.mark.slow
def test_of_learners_that_take_over_from_one_another_readers_only_ever_see_whole_and_newer_versions(
    queue: Clients, object_store: ObjectStore
) -> None:
    queue.configure(RULES)
    over, fenced = threading.Event(), []
    well_begun = [threading.Event() for _ in range(LEARNERS)]
    seen: list[Published] = []

    def learn(number: int) -> None:
        if number:
            wait_until(
                lambda: well_begun[number - 1].is_set() or over.is_set(), f"learner {number} of {LEARNERS} to publish"
            )
        mine = Clients(queue.client, queue.run)
        lineage = mine.resume().lineage
        learner = weight_publisher(object_store, anchor_every=3)
        last = number == LEARNERS - 1
        try:
            for version in (Version(lineage, n) for n in (range(VERSIONS) if last else itertools.count())):
                if over.is_set():
                    return
                mine.publish(lineage, learner.publish(version, weights_of(version), "float32"))
                if version.number + 1 == TAKEN_OVER_AFTER:
                    well_begun[number].set()
                learner.further(version)
                weights.prune(object_store, version, s=1)
        except FencedError:
            fenced.append(lineage)

    def read() -> None:
        while True:
            last = over.is_set()
            published = queue.published()
            if published is not None and (not seen or published != seen[-1]):
                try:
                    assert same(fetch(object_store, published), weights_of(published.version))
                except MissingObject:  # it may have been pruned, but only for a newer one
                    newer = queue.published()
                    assert newer is not None
                    assert newer.version > published.version
                    continue
                seen.append(published)
            if last:
                return

    with ThreadPoolExecutor(LEARNERS + 1) as pool:
        reader = pool.submit(read)
        learners = [pool.submit(learn, number) for number in range(LEARNERS)]
        try:
            for learner in as_completed(learners):
                learner.result()
        finally:
            over.set()
        reader.result()
    versions = [published.version for published in seen]
    assert versions == sorted(set(versions))
    assert versions[-1] == Version(LEARNERS, VERSIONS - 1)
    assert fenced == list(range(1, LEARNERS)), "every learner but the last is taken over"
    assert weights.latest(object_store, VERIFIER) == seen[-1]
