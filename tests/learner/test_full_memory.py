"""A learner that waits for groups while Redis is full frees what it has trained, even if no checkpoint is due yet."""

import logging
import threading

import pytest

from learner.recovery import checkpoint
from learner.training_loop import train
from tests.learner.learner_harness import LearnerHarness
from tests.waiting import wait_until

ROOM_BYTES = 80_000
"""Less than the payloads of what is left to train, and enough for several updates."""
PROMPTS = 60


# The server's own buffers and its Lua heap count as memory too: on a busy machine they fill the room that is left here.
@pytest.mark.proof(kind="full memory", share=0.0)
def test_a_full_server_makes_the_learner_save_and_commit_at_once(
    harness: LearnerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    config = harness.config(learner={"checkpoint_updates": 20}, model={"max_new_tokens": 400})
    harness.submit(config, PROMPTS)
    queue = harness.queue(config)

    def fill() -> None:
        wait_until(lambda: queue.status().uncommitted > 0, "the first update")
        queue.client.config_set("maxmemory", int(queue.client.info("memory")["used_memory"]) + ROOM_BYTES)

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    try:
        harness.work(config, longest=400)
        train(config, threading.Event())
    finally:
        filling.join()
        queue.client.config_set("maxmemory", 0)
    audit = queue.audit()
    assert (audit.ok, audit.trained) == (True, PROMPTS)
    saved = [each for each in checkpoint.history(harness.store(config)) if each.trained]
    assert len(saved) > 1, "one checkpoint alone would do without a full server"
    assert "learner.checkpoint_updates" in caplog.text and "maxmemory" in caplog.text
