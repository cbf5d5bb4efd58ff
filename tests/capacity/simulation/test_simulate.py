"""The promises of a simulation's figures."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_queue.capacity.bounds.lengths import Lengths
from echo_queue.capacity.fleet_file import Churn
from echo_queue.capacity.plan.scenarios import scenario_at
from echo_queue.capacity.simulation import Figures, simulate
from echo_queue.capacity.simulation.measured_files import read_lengths, read_losses
from echo_queue.capacity.simulation.world import SimulatedPool
from echo_queue.errors import ConfigError, EchoQueueError
from tests.capacity.fleets import small
from tests.capacity.simulation.scenarios import scenario

LOSSES = {"losses_per_hour": 40.0, "boot_s": 20.0}


def total(figures: Figures) -> float:
    return figures.utilisation + sum(figures.waits.values())


@given(
    s=st.integers(0, 6),
    generation=st.floats(0.2, 2.5),
    supply=st.floats(0.5, 2.0),
    batch=st.sampled_from((2, 8, 48)),
    seed=st.integers(0, 99),
)
@settings(max_examples=8, deadline=None)
@pytest.mark.slow
def test_no_lag_exceeds_s_and_the_learner_trains_or_waits(
    s: int, generation: float, supply: float, batch: int, seed: int
) -> None:
    asked = scenario(
        s, generation=generation, supply=supply, batch=batch, updates=40, warm_up=5, seed=seed, pool=LOSSES
    )
    figures = simulate(asked)
    assert figures.worst_lag <= s
    assert total(figures) == pytest.approx(1.0, abs=0.05)  # the account begins and ends within an update
    assert figures.groups == 40 * batch
    assert 0 <= figures.lost_share + figures.stale_share <= 1
    assert figures.busy_share <= 1 + 1e-6


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    churn = {"stragglers": 0.3, "bursts_per_hour": 10.0}
    first, again, other = (orjson.dumps(simulate(scenario(pool=LOSSES, churn=churn, seed=seed))) for seed in (7, 7, 8))
    assert first == again != other


DRAW = """
from echo_queue.capacity.bounds.lengths import Lengths
from echo_queue.capacity.simulation.events import GroupWork
work = GroupWork(Lengths(600.0, 0.8, 4096.0), 16, 7)
print([work(prompt).hex() for prompt in range(2_000)])
"""


def test_what_is_drawn_is_the_same_on_a_processor_that_can_do_less() -> None:
    """Numpy's own code for wider registers rounds otherwise; on a processor without them there is nothing to see."""

    def drawn(but: str) -> bytes:
        asked = {**os.environ, "NPY_DISABLE_CPU_FEATURES": but}
        return subprocess.run([sys.executable, "-c", DRAW], env=asked, capture_output=True, check=True).stdout

    assert drawn("") == drawn("X86_V4 AVX512_ICL AVX512_SPR")


def test_an_ample_fleet_keeps_the_learner_busy_and_a_short_one_as_busy_as_it_can() -> None:
    ample, short = (simulate(scenario(8, generation=1.0, supply=supply, updates=300)) for supply in (1.5, 0.75))
    assert ample.utilisation > 0.97
    assert short.utilisation == pytest.approx(short.supply, abs=0.03)
    assert max(short.waits, key=short.waits.__getitem__) == "machines"


def test_at_s_0_an_update_costs_its_training_its_broadcast_and_its_longest_group() -> None:
    figures = simulate(scenario(0, generation=1.0, spread=0.0, supply=4.0))
    assert figures.seconds == pytest.approx(figures.updates * (10 + 0.5 + 3 + 10))
    assert figures.waits["weights"] == pytest.approx(3.5 / 23.5, abs=0.01)


def test_pacing_keeps_data_fresher_than_the_bound_allows() -> None:
    paced, filled = (simulate(scenario(8, supply=1.5, rules={"pace": pace}, updates=200)) for pace in (True, False))
    assert paced.mean_lag < filled.mean_lag / 2
    assert paced.utilisation > filled.utilisation - 0.02


def test_what_is_stored_or_handed_over_is_not_lost_with_a_machine() -> None:
    def lost_share(progress_s: float, *, notice: bool = False) -> float:
        pool = LOSSES | {"progress_s": progress_s}
        return simulate(scenario(12, generation=3.0, updates=150, pool=pool, churn={"notice": notice})).lost_share

    assert lost_share(2.0, notice=True) == 0 < lost_share(2.0) < lost_share(0.0) / 3


def test_machines_come_and_go_and_cost_while_they_are_there() -> None:
    guests = Churn(begins_s=300.0, ends_s=700.0)
    pools = (
        SimulatedPool("own", 4, (1.0,), usd_per_hour=3.6),
        SimulatedPool("guest", 4, (1.0,) * 8, usd_per_hour=9.0, churn=guests),
    )
    figures = simulate(replace(scenario(updates=150, warm_up=0), pools=pools))
    usd = 4 * 3.6 * figures.seconds / 3600 + 4 * 9.0 * 400 / 3600
    assert figures.usd_per_update == pytest.approx(usd / figures.updates)


def test_measured_lengths_and_losses_come_from_files(tmp_path: Path) -> None:
    """10 machines make a group of the mean longest sample in 20 s each; those of the file have 55 tokens."""
    lengths, lost = tmp_path / "lengths", tmp_path / "lost"
    lengths.write_text("55\n55\n")
    lost.write_text("250 1\n100,2\n")
    simulation = f"""[simulation]
        updates = 50
        warm_up = 0
        machines.good = 10
        churn.good.losses_file = "{lost}"
        lengths_file = "{lengths}"
        [weights]"""
    steady = ("interruptions_per_hour = { assumed = 0.5", "interruptions_per_hour = { assumed = 0")
    figures = simulate(scenario_at(small(tmp_path, ("[weights]", simulation), steady), 4))
    assert figures.machines_lost == 3
    assert figures.supply == pytest.approx(10 * 40 / 10 / 20 * Lengths(100, 0.1, 400).mean_of_longest(4) / 55)


def test_a_fleet_that_never_ends_a_group_is_an_error_and_no_endless_wait() -> None:
    hopeless = {"losses_per_hour": 100.0, "progress_s": 0.0, "boot_s": 1.0}
    asked = scenario(2, generation=100.0, supply=0.004, updates=5, warm_up=0, pool=hopeless)
    with pytest.raises(EchoQueueError, match="tasks died"):
        simulate(asked)


@pytest.mark.parametrize("line", ["nothing", "1 2", "nan", "0"])
def test_a_line_that_is_no_length_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "lengths"
    file.write_text(f"5\n{line}\n")
    with pytest.raises(ConfigError, match="lengths:2"):
        read_lengths(file)


@pytest.mark.parametrize("line", ["", "1", "1 0", "-1 2", "1 1.5"])
def test_a_line_that_is_no_loss_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "lost"
    file.write_text(f"5 1\n{line}\n")
    with pytest.raises(ConfigError, match="lost:2"):
        read_losses(file)
