"""A number that another role wrote is read whole, or refused by one known error."""

import pytest

from echo_queue.records.foreign_numbers import MOST, NoNumber, finite, whole


def test_numbers_of_our_own_code_are_read() -> None:
    assert [whole(word) for word in ("0", b"7", str(MOST), "007")] == [0, 7, MOST, 7]
    assert [finite(str(number)) for number in (0, -1.5, 1e-05, 2.5e14, 1 / 3)] == [0, -1.5, 1e-05, 2.5e14, 1 / 3]


@pytest.mark.parametrize(
    "word", ["", " 1", "1 ", "1\n", "+1", "-1", "1_0", "1.0", "0x1", "\u0661", "\u00b2", b"\xff", "9" * 16, "9" * 5000]
)
def test_what_is_no_whole_number_is_refused(word: str | bytes) -> None:
    with pytest.raises(NoNumber, match="is no number"):
        whole(word)


def test_a_number_above_what_its_reader_expects_is_refused() -> None:
    assert whole("65535", 65535) == 65535
    with pytest.raises(NoNumber):
        whole("65536", 65535)


@pytest.mark.parametrize(
    "word",
    ["", "nan", "inf", "-inf", "1e999", "1e16", "0x1p3", "1_0", "1,5", ".5", "1.", "\u0661.5", "9" * 5000, b"\xff"],
)
def test_what_is_no_finite_number_is_refused(word: str | bytes) -> None:
    with pytest.raises(NoNumber):
        finite(word)
