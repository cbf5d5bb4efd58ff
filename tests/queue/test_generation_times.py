"""The histogram of generation times is bounded, adds up, and loses less than a fifth of a quantile's value."""

import numpy as np
import pytest

from echo_queue.queue.generation_times import BUCKETS, FIRST_S, GROWTH, RECENT, GenerationTimes

WORD_MAX_BYTES = 200
"""The most bytes of a word of a heartbeat, by `library/leasing.lua`."""


@pytest.mark.parametrize("mean_s", [0.5, 40.0, 6_000.0])
def test_quantiles_are_right_to_a_fifth_and_add_up_over_workers(mean_s: float) -> None:
    times = np.random.default_rng(1).lognormal(np.log(mean_s), 0.8, (4, RECENT))
    one, *others = map(GenerationTimes.of, times)
    together = sum(others, start=one)
    assert together.groups == times.size
    for share, found in ((0.5, together.p50_s), (0.9, together.p90_s), (0.99, together.p99_s)):
        assert found == pytest.approx(np.quantile(times, share), rel=0.2)


@pytest.mark.parametrize("times", [[0.0], [1e9] * RECENT, [FIRST_S * GROWTH**k for k in range(BUCKETS)] * 6, []])
def test_any_times_of_a_worker_fit_into_a_word_that_reads_the_same(times: list[float]) -> None:
    counted = GenerationTimes.of(times)
    assert len(counted.word()) <= WORD_MAX_BYTES and counted.groups == len(times)
    assert GenerationTimes.parse(counted.word()) == counted


def test_without_groups_no_time_is_known() -> None:
    assert GenerationTimes().p50_s is None


@pytest.mark.parametrize("forged", ["7", "x:1", "39:1,1", "0:-1", "0:99999", "1:1,", "٣:1"])
def test_a_forged_word_is_no_histogram(forged: str) -> None:
    with pytest.raises(ValueError, match=r"histogram|buckets"):
        GenerationTimes.parse(forged)
