"""Ranks of one learner die wherever they work together, once and twice; the launcher starts them again each time."""

from itertools import product

import pytest

from echo_queue.errors import HOPELESS
from tests.faults.crash_points import rank_crashes
from tests.faults.crash_points.cases import LearnerCase
from tests.faults.crash_points.crashing_run import CrashHarness
from tests.faults.crash_points.rank_crashes import CRASHES, DEATHS, PLACES, Crash
from tests.tiers import few

FEW_PAIRS = 1
"""Pairs that CI draws."""
DEADLINE_S = 240.0


class RanksCase(LearnerCase):
    """A learner of two ranks, with the real launcher, which starts both again after each death."""

    PROMPTS = 31
    lease_s = 60.0
    """Its worker does not die, so no pause of a busy machine costs a task one of its attempts."""

    def __init__(self, harness: CrashHarness, name: str, crashes: tuple[Crash, ...]) -> None:
        super().__init__(harness, name, ())
        self.crashes = crashes
        rank_crashes.plan(self.directory, crashes)

    def run(self) -> list[float]:
        """Runs the learner to its end; returns the seconds after each death until the ranks went on.

        The run ends with a dead prompt: the one that no learner can train on.
        """
        settings = self.config.learner.model_copy(update={"ranks": 2, "rank_deadline_s": 20.0})
        config = self.config.model_copy(update={"learner": settings})
        process = self.harness.begin("learner whose ranks crash", (config, self.directory), self.log)
        assert process.wait(DEADLINE_S) == HOPELESS, self.told()
        assert rank_crashes.planned(self.directory, DEATHS) == list(self.crashes), self.told()
        self.verdict()
        return rank_crashes.resumed_s(self.directory)


def resumed_s(harness: CrashHarness, name: str, crashes: tuple[Crash, ...]) -> list[float]:
    with RanksCase(harness, name, crashes) as case:
        return case.run()


@pytest.mark.slow
def test_a_rank_may_die_wherever_ranks_work_together(harness: CrashHarness, capsys: pytest.CaptureFixture[str]) -> None:
    """… one after the other in one run, each time the rank that the seed draws. It prints how long the run stood."""
    crashes = tuple(few([Crash(place, rank) for rank in (0, 1)], 1, f"crash {place}")[0] for place in PLACES)
    seconds = resumed_s(harness, "crashes", crashes)
    with capsys.disabled():
        print(f" [{len(crashes)} crashes, {max(seconds):.1f} s at most until the ranks went on]", end="")


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_ranks_may_die_at_one_place_and_then_at_another(
    harness: CrashHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    """… each rank at each of them."""
    pairs = few(list(product(CRASHES, CRASHES)), FEW_PAIRS, "crashes")
    seconds = [most for number, pair in enumerate(pairs) for most in resumed_s(harness, f"crashes-{number}", pair)]
    with capsys.disabled():
        print(f" [{len(pairs)} pairs of crashes, {max(seconds):.1f} s at most until the ranks went on]", end="")
