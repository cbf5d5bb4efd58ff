"""The table is whole: each figure is defined once, by Prometheus' rules, and the page is what the table says."""

import re

import pytest

from echo_queue.reporting.figures import queue_figures
from echo_queue.reporting.figures.figure import RUN, Figure
from echo_queue.reporting.figures.page import page
from echo_queue.reporting.figures.table import FIGURES, SUBJECTS
from tests.source_code import ROOT

NAME = re.compile(r"echo_queue(_[a-z0-9]+)+")
SHORT_FOR = re.compile(r"_(ms|us|mins?|hours?|kb|mb|gb|percent)(_|$)")
COUNTED = re.compile(r"\b(?:count|tally)\(run, ([^)]*)\)")
NUMBERS = {"submitted", "trained"}
"""Counters that the status has as numbers of their own; `trained` falls at a rewind, and so is a place."""
NEVER_TOLD = {"exhausted"}
"""A mark for the learner, which removes it."""


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_is_named_and_told_by_the_rules(figure: Figure) -> None:
    assert NAME.fullmatch(figure.name) and not SHORT_FOR.search(figure.name)
    assert (figure.kind == "counter") == figure.name.endswith("_total")
    assert all(re.fullmatch("[a-z]+", label) and label != RUN for label in figure.labels)
    assert not {"worker", "machine", "prompt", "task", "le", "quantile"} & set(figure.labels)
    for told in (figure.meaning, figure.source, figure.normal, figure.action):
        assert told.strip() == told and told
    assert figure.meaning.endswith(".") and ". " not in figure.meaning, "one sentence"


def test_no_two_figures_have_one_name() -> None:
    families = [figure.name.removesuffix("_total") for figure in FIGURES]
    assert len(set(families)) == len(families)


def test_the_written_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "figures.md").read_text(encoding="utf-8") == page(), "run `make docs`"
    assert all(f"\n## {subject.title}\n" in page() for subject in SUBJECTS)


def test_every_counter_of_the_queue_is_a_figure_from_the_beginning() -> None:
    """Else its first count would be no increase for Prometheus."""
    library = ROOT / "echo_queue" / "queue" / "library"
    text = "".join(path.read_text(encoding="utf-8") for path in library.glob("*.lua"))
    counted = {name for call in COUNTED.findall(text) for name in re.findall(r"'(\w+)'", call.partition(", ")[0])}
    assert "causes[cause]" in text, "a loop over those of `Reclaimed`"
    counted |= {"expired", "failed", "released"}
    tallies = set(re.findall(r"'(\w+)'", text.partition("local TALLIES = {")[2].partition("}")[0]))
    assert {"admitted", "buried", "lost"} <= counted and {"leased", "left_error"} <= tallies
    known = {*queue_figures.EVENTS, *queue_figures.ELSEWHERE, *NUMBERS, *NEVER_TOLD}
    kinds = {f"{name}…" for name in counted if name.endswith("_")}  # bad_ and what was wrong, peer_ and the complaint
    assert kinds <= {"bad_…", "peer_…"}
    assert {name for name in counted | tallies if not name.endswith("_")} <= known
