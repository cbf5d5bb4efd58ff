"""What a simulation promises of its figures."""

from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_queue.capacity.simulation import Figures, Setting, load, simulate
from echo_queue.errors import ConfigError, EchoQueueError
from tests.capacity.simulation.settings import setting

LOSSES = {"losses_per_machine_hour": 40.0, "boot_s": 20.0}


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
    asked = setting(s, generation=generation, supply=supply, batch=batch, updates=40, warm_up=5, pool=LOSSES)
    figures = simulate(asked, seed)
    assert figures.worst_lag <= s
    assert total(figures) == pytest.approx(1.0, abs=0.05)  # the account begins and ends within an update
    assert figures.groups == 40 * batch
    assert 0 <= figures.lost_share + figures.stale_share <= 1
    assert figures.busy_share <= 1 + 1e-6


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    asked = setting(pool=LOSSES | {"stragglers": 0.3, "bursts_per_hour": 10.0})
    first, again, other = (orjson.dumps(simulate(asked, seed)) for seed in (7, 7, 8))
    assert first == again != other


def test_an_ample_fleet_keeps_the_learner_busy_and_a_short_one_as_busy_as_it_can() -> None:
    ample, short = (simulate(setting(8, generation=1.0, supply=supply, updates=300)) for supply in (1.5, 0.75))
    assert ample.utilisation > 0.97
    assert short.utilisation == pytest.approx(short.supply, abs=0.03)
    assert max(short.waits, key=short.waits.__getitem__) == "machines"


def test_at_s_0_an_update_costs_its_training_its_broadcast_and_its_longest_group() -> None:
    asked = setting(0, generation=1.0, supply=4.0)
    constant = asked.model_copy(update={"generation": asked.generation.model_copy(update={"tail": "constant"})})
    figures = simulate(constant)
    assert figures.seconds == pytest.approx(figures.updates * (10 + 0.5 + 3 + 10))
    assert figures.waits["weights"] == pytest.approx(3.5 / 23.5, abs=0.01)


def test_pacing_keeps_data_fresher_than_the_bound_allows() -> None:
    paced, filled = (simulate(setting(8, supply=1.5, staleness={"pace": pace}, updates=200)) for pace in (True, False))
    assert paced.mean_lag < filled.mean_lag / 2
    assert paced.utilisation > filled.utilisation - 0.02


def test_what_is_stored_or_handed_over_is_not_lost_with_a_machine() -> None:
    far = setting(12, generation=3.0, updates=150)
    lost = {
        name: simulate(far.model_copy(update={"pools": (far.pools[0].model_copy(update=LOSSES | pool),)})).lost_share
        for name, pool in {
            "never stored": {"progress_s": 0.0},
            "stored": {"progress_s": 2.0},
            "noticed": {"notice": True},
        }.items()
    }
    assert lost["noticed"] == 0 < lost["stored"] < lost["never stored"] / 3


def test_machines_come_and_go_and_cost_while_they_are_there() -> None:
    pools = [
        {"name": "own", "machines": 4, "concurrent_groups": 1, "usd_per_hour": 3.6},
        {"name": "guest", "machines": 4, "begins_s": 300.0, "ends_s": 700.0, "usd_per_hour": 9.0},
    ]
    asked = Setting.model_validate(setting(updates=150, warm_up=0).model_dump() | {"pools": pools})
    figures = simulate(asked)
    usd = 4 * 3.6 * figures.seconds / 3600 + 4 * 9.0 * 400 / 3600
    assert figures.usd_per_update == pytest.approx(usd / figures.updates)


def test_measured_times_and_losses_come_from_files(tmp_path: Path) -> None:
    times, lost, file = (tmp_path / name for name in ("times", "lost", "fleet.toml"))
    times.write_text("5\n5\n")
    lost.write_text("250 1\n100,2\n")
    file.write_text(
        f"""
        simulation = {{ updates = 50, warm_up = 0 }}
        learner = {{ batch_groups = 4, t_train_s = 10 }}
        generation = {{ tail = "empirical", file = "{times}" }}
        [[pools]]
        name = "a"
        machines = 4
        concurrent_groups = 1
        losses_file = "{lost}"
        """
    )
    figures = simulate(load(file))
    assert figures.machines_lost == 3
    assert figures.supply == pytest.approx(2.0)


def test_a_fleet_that_never_ends_a_group_is_an_error_and_no_endless_wait() -> None:
    hopeless = {"losses_per_machine_hour": 100.0, "progress_s": 0.0, "boot_s": 1.0}
    asked = setting(2, generation=100.0, supply=0.004, updates=5, warm_up=0, pool=hopeless)
    with pytest.raises(EchoQueueError, match="tasks died"):
        simulate(asked)


def test_all_that_is_wrong_in_a_file_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("learner = { batch_groups = 0, t_train_s = 10, colour = 1 }\npools = []\n[staleness]\ns = 2\n")
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert {problem.where for problem in refused.value.problems} == {
        "learner.batch_groups", "learner.colour", "generation", "pools",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["nothing", "1 2", "nan", "0"])
def test_a_line_that_is_no_time_is_named(tmp_path: Path, line: str) -> None:
    times = tmp_path / "times"
    times.write_text(f"5\n{line}\n")
    measured = {"tail": "empirical", "file": str(times)}
    with pytest.raises(ConfigError, match="times"):
        simulate(Setting.model_validate(setting().model_dump() | {"generation": measured}))
