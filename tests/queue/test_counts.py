"""Numbers of things in words, and one form of percentages wherever a command prints them."""

import re

import pytest

from echo_queue.queue.counts import counted
from tests.source_code import ROOT


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 prompts are"), (1, "1 prompt is"), (2, "2 prompts are"), (2_400, "2,400 prompts are")]
)
def test_the_verb_goes_with_the_number(number: int, said: str) -> None:
    assert counted(number, "prompt", "is", "are") == said
    assert counted(number, "prompt") == said.rpartition(" ")[0]


def test_commands_print_percentages_without_a_blank() -> None:
    printed = [*(ROOT / "echo_queue" / "cli").rglob("*.py"), *(ROOT / "configs" / "fleets").glob("*.toml")]
    for path in printed:
        text = re.sub(r'"""(.|\n)*?"""|#.*', "", path.read_text(encoding="utf-8"))
        assert not re.search(r"[\d}] %(?![a-z(\d])", text), path
