"""A fleet file is checked whole, and each problem says what to do."""

from datetime import date
from pathlib import Path

import pytest

from echo_queue.capacity.loading import load_fleet
from echo_queue.capacity.plan.comparison import plan
from echo_queue.errors import ConfigError, Problem
from tests.capacity.fleets import ON, small

PRICE = 'price = { usd_per_hour = 1, on = 2026-11-20, source = "p" }\n'
MARK = ("[weights]", '[prices]\nold = "mark"\n[weights]')


def problems(directory: Path, *changes: tuple[str, str], on: date = ON) -> dict[str, Problem]:
    with pytest.raises(ConfigError) as caught:
        small(directory, *changes, on=on)
    return {problem.where: problem for problem in caught.value.problems}


def test_everything_wrong_with_values_is_reported_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        ('t_train_s = { measured = 40, source = "m" }', "t_train_s = 40"),
        ('change = { assumed = 0.02, why = "a" }', 'change = { assumed = 2, why = "a" }'),
        ('boot_s = { assumed = 360, why = "a" }', "boot_s = { assumed = 360 }"),
        ("samples_at_once", "samples_at_onc"),
        ("max_machines = 20", "max_machines = 0"),
    )
    assert found.keys() == {
        "learner.t_train_s",
        "weights.change",
        "pools.good.boot_s.why",
        "pools.good.samples_at_onc",
        "pools.good.samples_at_once",
        "pools.good.max_machines",
    }
    assert "whether it was measured or is assumed" in found["learner.t_train_s"].what
    assert "{ measured = NUMBER" in found["learner.t_train_s"].fix
    assert found["pools.good.samples_at_onc"].fix == "did you mean samples_at_once?"


def test_everything_that_does_not_fit_together_is_reported_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        ("s = 4\n", "s = 4\nkappa = 6\n"),
        ("mean_tokens = { measured = 100", "mean_tokens = { measured = 500"),
        ("samples_at_once = 8", "samples_at_once = 3"),
        ('instance_types = ["g6.xlarge"]\n', ""),
        ("us-east-1", "us-east-1a"),
        ("[weights]", "[budget]\nusd_per_hour = 9\n[weights]"),
        ("on = 2026-11-20", "on = 2026-12-24"),
    )
    assert found.keys() == {
        "run.kappa",
        "lengths.mean_tokens",
        "pools.good.tokens_per_s",
        "pools.good.samples_at_once",
        "pools.good.instance_types",
        "pools.good.region",
        "budget.usd_per_hour",
        "learner.price.on",
        "pools.good.price.on",
    }


def test_an_old_price_is_refused_or_marked(tmp_path: Path) -> None:
    later = date(2026, 12, 5)
    found = problems(tmp_path, on=later)
    assert "15 days old" in found["pools.good.price.on"].what
    assert 'prices.old = "mark"' in found["pools.good.price.on"].fix
    marked = plan(small(tmp_path, MARK, on=later), later)
    assert [(one.age_days, one.old) for one in marked.pools] == [(15, True)]


def test_a_pool_without_a_price_is_refused_or_left_out(tmp_path: Path) -> None:
    assert problems(tmp_path, (PRICE, ""))["pools.good.price"].what == "is unknown"
    assert "pools" in problems(tmp_path, (PRICE, ""), MARK)
    text = (tmp_path / "fleet.toml").read_text(encoding="utf-8")
    other = text[text.index("[pools.good]") :].replace("pools.good", "pools.priced") + PRICE
    fleet = small(tmp_path, (PRICE, ""), MARK, ("[pools.good]", other + "[pools.good]"))
    found = plan(fleet, ON)
    assert found.left_out == {"good": "its price is unknown"}
    assert found.chosen.machines.keys() == {"priced"}


def test_what_a_simulation_cannot_go_by_is_reported_with_the_rest(tmp_path: Path) -> None:
    simulation = """[simulation]
machines = { better = 3 }
churn.other.notice = true
staleness = { s = 3, pace = false }
queue = { lease_s = 10, stall_deadline_s = 20 }
[weights]"""
    found = problems(tmp_path, ("[weights]", simulation), ("us-east-1", "us-east-1a"))
    assert found.keys() == {
        "pools.good.region",
        "simulation.machines.better",
        "simulation.churn.other",
        "simulation.staleness.s",
        "simulation.queue.stall_deadline_s",
    }
    leaving = problems(tmp_path, ("[weights]", "[simulation]\nchurn.good.ends_s = 9\n[weights]"))
    assert leaving["simulation.churn"].what == "at times there is no pool at all"
    unpriced = ("[weights]", "[prices]\nold = 'mark'\n[simulation]\nmachines.good = 3\n[weights]")
    assert "simulation.machines.good" in problems(tmp_path, (PRICE, ""), unpriced)


def test_a_file_of_an_earlier_simulate_is_told_what_it_is_to_be(tmp_path: Path) -> None:
    file = tmp_path / "setting.toml"
    file.write_text("learner = { batch_groups = 4, t_train_s = 10 }\n[[pools]]\nname = 'a'\nmachines = 4\n")
    with pytest.raises(ConfigError, match="earlier `simulate`") as told:
        load_fleet(file, ON)
    assert [problem.where for problem in told.value.problems] == [str(file)]
    assert "[simulation]" in told.value.problems[0].fix


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_fleet(tmp_path / "none.toml", ON)
