"""The learner's allocator grows its segments, unless the user has settings of their own, under either name."""

import pytest

from learner.allocator import NAMES, grow_segments


def test_segments_grow_where_nothing_is_set() -> None:
    environ: dict[str, str] = {}
    grow_segments(environ)
    assert environ == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_the_user_stay_alone(name: str) -> None:
    environ = {name: "max_split_size_mb:512"}
    grow_segments(environ)
    assert environ == {name: "max_split_size_mb:512"}
