"""A run that has all that a worker needs: servers, weights, a base model in the store, and prompts that wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fleet.invitation.inviting_run import InvitingRun, inviting_run
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, tensors_of

PROMPTS = 12
REWARD = "def length(completions, **columns):\n    return [float(len(text)) for text in completions]\n"
"""A module `rewards` of a user's own, which has to be on every worker's machine."""


@dataclass(frozen=True)
class StagedRun:
    servers: InvitingRun
    harness: WorkerHarness


@contextmanager
def staged_run(folder: Path) -> Iterator[StagedRun]:
    """Gives the run, whose secrets must be in the environment. Everything is ended afterwards."""
    model = save_model(folder / "model", seed=0)
    with inviting_run(folder) as servers:
        environment = {"kind": "function", "function": "rewards:length"}
        harness = WorkerHarness(folder, model, **(servers.settings() | {"environment": environment}))
        try:
            harness.store.upload_folder(model, "base")
            harness.begin([f"What is {number} + 1?" for number in range(PROMPTS)], tensors_of(model))
            yield StagedRun(servers, harness)
        finally:
            harness.end()
