from echo_queue.launch.backoff import RestartBackoff

BACKOFF = RestartBackoff(first_pause_s=0.5, longest_pause_s=8.0, settled_s=30.0, most_ends=5)


def test_pauses_double_up_to_the_longest() -> None:
    assert [BACKOFF.pause_s(ends) for ends in (1, 2, 3, 4, 5, 6, 1_000)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_ends_are_counted_until_a_life_that_settled() -> None:
    assert BACKOFF.ends_in_a_row(3, lived_s=30.0) == 4
    assert BACKOFF.ends_in_a_row(3, lived_s=30.1) == 1
