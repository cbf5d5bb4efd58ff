"""Alerts and dashboard name figures that there are, with labels that they have, and pages that say what to do."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from echo_queue.reporting.figures.figure import RUN
from echo_queue.reporting.figures.queue_figures import DEPARTURES, EVENTS
from echo_queue.reporting.figures.table import FIGURES
from echo_queue.reporting.figures.worker_figures import STATES
from infra.monitoring.make_dashboard import figures_of, made
from tests.source_code import ROOT
from tests.test_pages import anchors

FOLDER = ROOT / "infra" / "monitoring"
LABELS = {figure.name: {RUN, *figure.labels} for figure in FIGURES}
SELECTOR = re.compile(r"(echo_queue_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|on) \(([^)]*)\)")
WORDS = {
    "event": set(EVENTS),
    "state": set(STATES),
    "cause": set(DEPARTURES),
    "place": {"backlog", "tasks", "retry", "ready", "drained", "trained", "dead"},
}
"""The values of labels that are known beforehand."""


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def queries() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in orjson.loads((FOLDER / "dashboard.json").read_bytes())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_the_dashboard_is_what_the_script_makes() -> None:
    assert (FOLDER / "dashboard.json").read_text(encoding="utf-8") == made(), "run `make docs`"


def test_every_panel_has_its_place_and_every_query_a_name_of_its_own() -> None:
    panels = orjson.loads(made())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 20
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    for panel in panels:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(letters)) == len(letters) and (panel["type"] == "row") == (not letters)
        assert all('run=~"$run"' in target["expr"] for target in panel.get("targets", ()))


@pytest.mark.parametrize("query", tuple(queries()))
def test_every_query_names_figures_of_the_table_and_labels_that_they_have(query: str) -> None:
    names = figures_of(query)
    assert names and set(names) <= LABELS.keys()
    for name, inside in SELECTOR.findall(query):
        for label, _, value in MATCHER.findall(inside):
            assert label in LABELS[name]
            assert label == RUN or set(value.split("|")) <= WORDS[label]
    grouped = {label.strip() for labels in GROUPED.findall(query) for label in labels.split(",")}
    assert all(grouped <= LABELS[name] for name in names if "pool" in LABELS[name])
    assert RUN in grouped or not grouped


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_every_alert_names_a_section_that_says_what_to_do(rule: dict[str, Any]) -> None:
    page, _, section = rule["annotations"]["runbook"].partition("#")
    assert section in anchors(ROOT / page)
    assert rule["labels"]["severity"] in ("page", "ticket") and rule["for"]
    assert rule["annotations"]["summary"].endswith(".") and "$labels.run" in rule["annotations"]["summary"]


def test_promtool_takes_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on the path: `apt-get install prometheus`")
    for file in (FOLDER / "alerts.yaml", ROOT / "tests" / "infra" / "alert_tests.yaml"):
        shutil.copy(file, tmp_path)
    for words in (("check", "rules", "alerts.yaml"), ("test", "rules", "alert_tests.yaml")):
        done = subprocess.run(
            ["promtool", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
