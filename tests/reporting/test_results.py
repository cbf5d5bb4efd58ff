"""The report on a machine that only looks: what it needs, and which extra brings it."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.errors import ConfigError
from echo_queue.reporting import results

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_extra_that_a_missing_matplotlib_names_brings_it_alone(
    configure: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs matplotlib") as told:
        results.write(configure(), ())
    (extra,) = re.findall(r"echo-queue\[(\w+)\]", told.value.problems[0].fix)
    assert [requirement.partition(">")[0] for requirement in EXTRAS[extra]] == ["matplotlib"]
    assert any(re.search(rf"echo-queue\[.*\b{extra}\b.*\]", requirement) for requirement in EXTRAS["learner"])
