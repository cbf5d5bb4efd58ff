"""What `benchmarks.scoring` makes of its figures; the calls are those of `tests/workers/test_side_by_side.py`."""

from benchmarks.scoring import Figures, targets


def test_the_verdict_is_the_share_of_what_the_waits_or_the_cores_allow() -> None:
    near = Figures("judge", groups_per_s=4.9, one_at_a_time_per_s=0.7, allowed_per_s=5.3)
    far = Figures("tool", groups_per_s=4.7, one_at_a_time_per_s=0.1, allowed_per_s=5.3)
    assert round(near.ratio, 6) == 7.0 and list(targets([near, far]).values()) == [True, False]
