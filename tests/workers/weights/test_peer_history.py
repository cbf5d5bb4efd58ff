"""The rate that a worker reports of itself, which decides whether peers are sent to it."""

from workers.weights.peers.peer_history import FADE, WINDOW_BYTES, WINDOW_S, PeerHistory, Rate

MB = 1 << 20


def test_the_best_whole_window_counts() -> None:
    rate = Rate(0.0)
    for second, megabytes in enumerate((10, 50, 20), start=1):
        rate.count(megabytes * MB, second * WINDOW_S)
    assert rate.best(3.0) == 50 * MB / WINDOW_S


def test_a_burst_at_the_end_is_no_rate() -> None:
    rate = Rate(0.0)
    rate.count(10 * MB, WINDOW_S)
    rate.count(WINDOW_BYTES, WINDOW_S + 0.001)
    assert rate.best(WINDOW_S + 0.001) == 10 * MB / WINDOW_S


def test_what_is_over_before_a_window_is_has_its_own_rate_if_it_is_enough_to_say() -> None:
    rate = Rate(0.0)
    rate.count(WINDOW_BYTES, 0.1)
    assert rate.best(0.1) == WINDOW_BYTES / 0.1
    small = Rate(0.0)
    small.count(WINDOW_BYTES - 1, 0.1)
    assert small.best(0.1) == 0.0


def test_a_rest_does_not_count_and_what_came_before_it_does() -> None:
    rate = Rate(0.0)
    rate.count(10 * MB, 0.5)
    rate.rest(100.0)
    assert rate.best(100.0) == 10 * MB / 0.5
    rate.count(30 * MB, 100.0 + WINDOW_S)
    assert rate.best(200.0) == 30 * MB / WINDOW_S


def test_small_routes_teach_nothing_and_slow_ones_bit_by_bit() -> None:
    history = PeerHistory()
    history.learn(100.0)
    for _ in range(50):
        history.learn(0.0)
    assert history.rate == 100.0
    history.learn(10.0)
    assert history.rate == FADE * 100.0
    history.learn(200.0)
    assert history.rate == 200.0
