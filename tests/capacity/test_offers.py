"""A machine's supply, its price and its weights' way are what a person reckons from the file."""

from pathlib import Path

import pytest

from echo_queue.capacity.bounds.offers import offer, rate_at, useful_share
from echo_queue.capacity.plan.planning import Setting
from tests.capacity.fleets import small


def test_a_machine_supplies_its_accepted_groups_less_interruptions_and_boots(tmp_path: Path) -> None:
    """20 tokens/s at 100 tokens make a group of 4 in 20 s: 2 of the 10 in an update of 40 s."""
    fleet = small(tmp_path, ("accepted = { assumed = 1,", "accepted = { assumed = 0.5,"))
    one = offer(fleet, "good", Setting(fleet, 4, "delta", True).way, s=4, kappa=1)
    assert one.supply == pytest.approx(0.2 * 0.5 / (1 + 0.5 / 3_600 * (360 + 1)))


def test_an_interruption_costs_its_boot_and_what_it_loses() -> None:
    assert useful_share(0, 600, 10) == 1
    assert useful_share(1, 360, 36) == pytest.approx(1 / 1.11)


def test_rates_lie_between_measured_lengths_and_not_far_beyond(tmp_path: Path) -> None:
    rates = small(tmp_path).pools["good"].tokens_per_s
    assert [rate_at(rates, length) for length in (50, 100, 200)] == pytest.approx([40, 20, 10])
    assert rate_at(rates, 290) == 10
    assert (rate_at(rates, 310), rate_at(rates, 30)) == (None, None)


def test_a_delta_is_a_fraction_of_a_snapshot_and_takes_so_long_on_the_slowest_link(tmp_path: Path) -> None:
    """1 billion parameters: 1.33 GB whole; 2 % changed at 1.15 bytes are 23 MB; encoding and applying take 2.4 s."""
    fleet = small(tmp_path)
    snapshot, delta = (Setting(fleet, 4, form, True) for form in ("snapshot", "delta"))
    assert snapshot.way.bytes == pytest.approx(1.33e9)
    assert delta.way.bytes == pytest.approx(23e6, rel=0.02)
    assert snapshot.way.broadcast_s(1.0) == pytest.approx(2.43 + 10.64, rel=0.01)
    assert delta.way.broadcast_s(1.0) == pytest.approx(2.43 + 0.184, rel=0.01)


def test_a_chain_adds_a_chunk_for_each_worker_and_a_store_with_a_limit_everything(tmp_path: Path) -> None:
    limit = ("change =", 'store_gbit = { assumed = 2, why = "a" }\nchange =')
    fleet = small(tmp_path, limit)
    peers, store = (Setting(fleet, 4, "snapshot", peers).way for peers in (True, False))
    assert peers.next_worker_s == pytest.approx(262_144 * 8 / 1e9)
    assert store.next_worker_s == pytest.approx(1.33e9 * 8 / 2e9)
    assert Setting(small(tmp_path), 4, "snapshot", False).way.next_worker_s == 0


def test_peers_read_the_store_once_for_a_pool_and_others_once_for_a_worker(tmp_path: Path) -> None:
    """A snapshot of 1.33 GB every 2 updates of 40 s at 0.1 USD a GB are 5.985 USD an hour."""
    fleet = small(
        tmp_path,
        (
            "max_machines = 20",
            "max_machines = 20\ngpus = 2\nreading = { usd_per_gb = 0.1, on = 2026-11-20, source = 'p' }",
        ),
    )
    by_peers, by_store = (
        offer(fleet, "good", Setting(fleet, 4, "snapshot", peers).way, s=4, kappa=2) for peers in (True, False)
    )
    assert (by_peers.usd_per_hour, by_peers.entry_usd_per_hour) == pytest.approx((1, 5.985))
    assert (by_store.usd_per_hour, by_store.entry_usd_per_hour) == pytest.approx((1 + 2 * 5.985, 0))
