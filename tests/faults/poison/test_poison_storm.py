"""A short storm of poisoned prompts, with each poison that there is, and with a worker of which every group is bad."""

from pathlib import Path

import pytest

from tests.faults.poison.storm import PoisonStorm
from tests.seed import session_seed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "kind", ["function", pytest.param("interactive", marks=pytest.mark.proof(kind="whole runs", share=0.15))]
)
def test_a_poisoned_prompt_dies_of_its_own_reason_and_every_other_is_trained_once(tmp_path: Path, kind: str) -> None:
    verdict = PoisonStorm(tmp_path / kind, session_seed(), kind).run(duration_s=0.0)
    assert not verdict.faults, verdict
