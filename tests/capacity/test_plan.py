"""A plan says what to rent, what that costs, what is in the way, and what it would be otherwise."""

from pathlib import Path

import pytest

from echo_queue.capacity.fleet_file import Fleet
from echo_queue.capacity.plan.comparison import costs_by_bound, inputs, plan
from echo_queue.capacity.plan.document import Plan, PlannedSet
from echo_queue.capacity.plan.planning import plan_setting
from echo_queue.capacity.plan.scenarios import scenario_at
from echo_queue.capacity.simulation import simulate
from tests.capacity.fleets import ON, small

FAST_LEARNER = ("t_train_s = { measured = 40", "t_train_s = { measured = 4")
SITE = """[centralised]
price = { usd_per_hour = 5, on = 2026-11-20, source = "p" }
link_gbit = { assumed = 100, why = "a" }
samples_at_once = 8
tokens_per_s = { 100 = { measured = 50, source = "m" } }
[weights]"""


def planned(fleet: Fleet) -> PlannedSet:
    return plan_setting(fleet, fleet.run.s, fleet.weights.form, peers=fleet.weights.peers)


def limit(fleet: Fleet) -> str:
    return planned(fleet).binds


def test_the_figures_of_a_plan_are_those_of_its_machines(tmp_path: Path) -> None:
    found = plan(small(tmp_path, ("group_size = 4", "group_size = 4\nupdates = 1000")), ON)
    set_ = found.chosen
    assert set_.reached and set_.utilisation >= found.wanted_utilisation
    assert set_.supply == pytest.approx(set_.machines["good"] * found.pools[0].supply)
    assert set_.usd_per_hour == set_.pools_usd_per_hour + 10 == set_.machines["good"] + 10
    assert set_.usd_per_update == pytest.approx(set_.usd_per_hour * 40 / 3_600 / set_.utilisation)
    assert set_.usd_per_million_tokens == pytest.approx(set_.usd_per_update / 4_000 * 1e6)
    assert set_.usd_per_run == pytest.approx(set_.usd_per_update * 1_000)


def test_a_machine_less_would_not_do(tmp_path: Path) -> None:
    fleet = small(tmp_path)
    count = planned(fleet).machines["good"]
    one_less = small(tmp_path, ("max_machines = 20", f"max_machines = {count - 1}"))
    assert planned(one_less).binds == "throughput"


def test_a_plan_says_what_is_in_the_way(tmp_path: Path) -> None:
    assert limit(small(tmp_path)) == "learner"
    assert limit(small(tmp_path, ("max_machines = 20", "max_machines = 2"))) == "throughput"
    assert limit(small(tmp_path, ("[weights]", "[budget]\nusd_per_hour = 12\n[weights]"))) == "money"
    assert limit(small(tmp_path, FAST_LEARNER, ("max_machines = 20", "max_machines = 200"))) == "staleness"
    slow = ("link_gbit = { assumed = 1,", "link_gbit = { assumed = 0.002,")
    assert limit(small(tmp_path, slow)) == "dissemination"


def test_what_does_not_reach_the_goal_costs_least_per_update_and_stays_in_the_budget(tmp_path: Path) -> None:
    fleet = small(tmp_path, ("[weights]", "[budget]\nusd_per_hour = 13.5\n[weights]"))
    found = planned(fleet)
    assert (found.reached, found.machines, found.usd_per_hour) == (False, {"good": 3}, 13)


def test_a_pool_that_weights_do_not_reach_in_time_is_left_out_with_the_reason(tmp_path: Path) -> None:
    found = plan(small(tmp_path, ("link_gbit = { assumed = 1,", "link_gbit = { assumed = 0.002,")), ON)
    assert found.chosen.machines == {}
    assert found.chosen.usd_per_update is None
    assert "is longer than κ·T_train, 40 s" in found.left_out["good"]


def test_other_bounds_and_ways_are_planned_alike(tmp_path: Path) -> None:
    fleet = small(tmp_path, ("s = 4\n", "s = 4\ncompare_s = [0, 8]\n"))
    found = plan(fleet, ON)
    assert [one.s for one in found.other_bounds] == [0, 8]
    assert found.other_bounds[0].utilisation < found.chosen.utilisation
    assert {(one.form, one.peers) for one in found.other_ways} == {
        ("snapshot", False),
        ("snapshot", True),
        ("delta", False),
    }
    line = dict(costs_by_bound(fleet, (0, 4, 8))["delta, peers"])
    assert line[4] == found.chosen.usd_per_update
    assert line[8] == found.other_bounds[1].usd_per_update


def test_a_learner_that_generates_itself_takes_turns(tmp_path: Path) -> None:
    """One GPU makes 10 groups of 400 tokens at 50 tokens/s in 80 s, and half of a group of 18 s more."""
    sync, async_ = plan(small(tmp_path, ("[weights]", SITE)), ON).baselines
    assert (sync.kind, sync.generating_gpus, sync.usd_per_hour) == ("sync", 1, 10)
    assert sync.utilisation == pytest.approx(40 / (40 + 80 + 9), rel=0.01)
    assert (async_.kind, async_.generating_gpus, async_.usd_per_hour) == ("async", 3, 25)
    assert async_.saving is not None and async_.saving > 0


def test_every_number_is_measured_assumed_or_a_price_and_none_looks_like_another(tmp_path: Path) -> None:
    fleet = small(tmp_path)
    kinds = {one.key: one.kind for one in inputs(fleet)}
    assert kinds["learner.t_train_s"] == kinds["pools.good.tokens_per_s.50"] == "measured"
    assert kinds["weights.change"] == kinds["pools.good.boot_s"] == "assumed"
    assert kinds["learner.price"] == kinds["pools.good.price"] == "price"
    assert {one.key for one in plan(fleet, ON).sensitivities} == {
        key for key, kind in kinds.items() if kind == "assumed"
    }


def test_an_assumption_that_matters_shows_it(tmp_path: Path) -> None:
    found: Plan = plan(small(tmp_path), ON)
    moved = {one.key: one for one in found.sensitivities}["pools.good.interruptions_per_hour"]
    doubled = planned(small(tmp_path, ("{ assumed = 0.5,", "{ assumed = 1.0,")))
    assert moved.usd_per_update_at_double == doubled.usd_per_update


def test_a_simulation_without_machines_is_that_of_the_plan(tmp_path: Path) -> None:
    fleet = small(tmp_path)
    assert simulate(scenario_at(fleet, fleet.run.s)) == plan(fleet, ON).simulated


def test_a_simulation_publishes_as_often_as_its_bound_allows(tmp_path: Path) -> None:
    machines = ("[weights]", "[simulation]\nmachines.good = 3\n[weights]")
    every_third = small(tmp_path, machines, ("s = 4\n", "s = 4\nkappa = 3\n"))
    assert [scenario_at(every_third, s).times.kappa for s in (1, 4)] == [2, 3]
    slow = ("link_gbit = { assumed = 1,", "link_gbit = { assumed = 0.002,")  # weights take 94 s, and updates 40
    chosen = small(tmp_path, machines, slow, ("s = 4\n", "s = 4\nkappa = 'any'\n"))
    assert [scenario_at(chosen, s).times.kappa for s in (1, 4)] == [2, 3]


def test_the_chosen_set_is_simulated_with_the_same_supply_price_and_bound(tmp_path: Path) -> None:
    fleet = small(tmp_path)
    found = plan(fleet, ON)
    set_, simulated = found.chosen, found.simulated
    assert simulated is not None and simulated.usd_per_update is not None and set_.usd_per_update is not None
    assert simulated.worst_lag <= set_.s
    assert simulated.utilisation == pytest.approx(set_.utilisation, abs=0.08)
    assert simulated.usd_per_update * simulated.utilisation == pytest.approx(
        set_.usd_per_update * set_.utilisation, rel=0.02
    )
