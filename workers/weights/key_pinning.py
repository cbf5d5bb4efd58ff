"""Pins the learner's public key when the worker joins, and keeps it for the worker's life.

If the run's key changes later, the worker ends with an error that says what to do: either the learner has lost its
keys, or another process than the learner writes to Redis.
"""

import threading
from dataclasses import dataclass

from echo_queue.config import Config
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import TrustedWeights
from echo_queue.queue.types import RunKeys
from echo_queue.weights.signatures import SignatureVerifier
from workers.polling import poll

LONGEST_PAUSE_S = 0.5


class KeyChanged(ServiceError):
    """The run's weights are signed by another key than when this worker joined."""


@dataclass(frozen=True)
class PinnedKey:
    """The key that was pinned, and the run's other keys as they were then."""

    verifier: SignatureVerifier
    keys: RunKeys
    queue: TrustedWeights

    @property
    def chunk_key(self) -> bytes | None:
        return self.keys.chunk_key

    def check(self) -> None:
        """Raises `KeyChanged` if the run now names another key than the pinned one."""
        now = self.queue.run_keys()
        if now is not None and now.public_key != self.keys.public_key:
            raise _changed(now.public_key, self.keys.public_key, "the one when this worker joined")


def pin(config: Config, queue: TrustedWeights, shutdown: threading.Event) -> PinnedKey | None:
    """Waits for the learner to name its key and pins it; returns None once `shutdown` is set.

    Raises `DeadlineError` after `queue.stall_deadline_s`, or `KeyChanged` if the key is not `weights.public_key`.
    """
    deadline_s = config.queue.stall_deadline_s
    late = Problem("key of the weights", f"the learner named no key within {deadline_s:.0f} s", "start the learner")
    keys = poll(queue.run_keys, shutdown, deadline_s=deadline_s, longest_pause_s=LONGEST_PAUSE_S, late=late)
    if keys is None:
        return None
    expected = config.weights.public_key or keys.public_key
    if keys.public_key != expected:
        raise _changed(keys.public_key, expected, "weights.public_key")
    return PinnedKey(SignatureVerifier(expected), keys, queue)


def _changed(now: str, expected: str, how: str) -> KeyChanged:
    what = f"the run's weights are signed with {now[:16]}…, not with {expected[:16]}…, {how}"
    fix = "if the learner was given new keys, start the worker again; if not, another process writes to this Redis"
    return KeyChanged(Problem("key of the weights", what, fix))
