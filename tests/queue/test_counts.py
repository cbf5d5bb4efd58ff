"""Numbers in words, and one form of percentages wherever a command prints them."""

import re

import pytest

from echo_queue.queue.counts import counted, duration
from tests.source_code import ROOT


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 prompts are"), (1, "1 prompt is"), (2, "2 prompts are"), (2_400, "2,400 prompts are")]
)
def test_the_verb_goes_with_the_number(number: int, said: str) -> None:
    assert counted(number, "prompt", "is", "are") == said
    assert counted(number, "prompt") == said.rpartition(" ")[0]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0 s"), (119, "119 s"), (200, "3 min 20 s"), (18_131, "5 h 02 min"), (200_000, "2 days 7 h")],
)
def test_a_duration_is_told_in_two_units_at_most(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_commands_print_percentages_without_a_blank() -> None:
    printed = [*(ROOT / "echo_queue" / "cli").rglob("*.py"), *(ROOT / "configs" / "fleets").glob("*.toml")]
    for path in printed:
        text = re.sub(r'"""(.|\n)*?"""|#.*', "", path.read_text(encoding="utf-8"))
        assert not re.search(r"[\d}] %(?![a-z(\d])", text), path
