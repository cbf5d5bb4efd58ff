"""The map of savings: its edges lie where a plan saves what is reported, and each comparison is a plan anew."""

from datetime import date
from pathlib import Path

import pytest

from benchmarks.cost.__main__ import fleets_in, lines, measure
from benchmarks.cost.saving import REPORTED, edge, halved, in_proportion, offered, saving, uniform
from echo_queue.capacity.fleet_file import Fleet
from echo_queue.capacity.loading import load_fleet
from echo_queue.capacity.plan.comparison import inputs
from tests.source_code import ROOT

MATH = Path("configs/fleets/qwen3-8b-math.toml")
ON = date(2026, 11, 23)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return load_fleet(ROOT / MATH, ON)


def test_a_fleet_at_the_edges_price_saves_what_is_reported(fleet: Fleet) -> None:
    found = edge(fleet, "delta", rate=0.5, link_gbit=1.0)
    for price, share in zip(found.of_sync, REPORTED, strict=True):
        assert price
        assert saving(uniform(fleet, price=price, rate=0.5, link_gbit=1.0)).of_sync == pytest.approx(share)
    dearest, cheapest = found.of_async
    assert dearest and cheapest and dearest > cheapest
    assert saving(uniform(fleet, price=cheapest, rate=0.5, link_gbit=1.0)).of_async == pytest.approx(REPORTED[1])


def test_no_price_saves_anything_where_weights_never_arrive_in_time(fleet: Fleet) -> None:
    assert edge(fleet, "snapshot", rate=1.0, link_gbit=0.01).of_sync == (None, None)


def test_machines_as_they_come_cost_no_less_than_the_cheapest(fleet: Fleet) -> None:
    planned, taken = saving(fleet).usd_per_update, in_proportion(fleet).usd_per_update
    assert planned and taken and planned <= taken


@pytest.mark.slow
def test_each_pool_is_priced_and_each_assumption_is_tried_both_ways(fleet: Fleet) -> None:
    assert [one.pool for one in offered(fleet)] == list(fleet.pools)
    tried = {one.key: one for one in halved(fleet)}
    assert set(tried) == {one.key for one in inputs(fleet) if one.kind == "assumed" and one.value > 0}
    faster = tried["pools.rtx4090.tokens_per_s.2048"].twice
    assert faster and faster.of_sync and faster.of_sync > (saving(fleet).of_sync or 0)


@pytest.mark.slow
def test_the_document_has_what_the_command_prints_of_the_dated_offers() -> None:
    told = "\n".join(lines(measure(fleets_in(ROOT / "configs/fleets", ON))))
    _, begin, rest = told.partition("Dated offers, each alone")
    dated = begin + rest.partition("\n\n")[0]
    assert f"```\n{dated}\n```" in (ROOT / "docs/capacity.md").read_text(encoding="utf-8")
