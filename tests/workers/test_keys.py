"""Every key that a worker reads says so: an invitation brings it along, or each machine has its own."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echo_queue.config import Config, Section
from echo_queue.config.keys import Key, fields_of, keys_of
from tests.source_code import ROOT
from tests.workers.worker_harness import WorkerHarness, tensors_of

WORKERS = str(ROOT / "workers")


def sections_below(model: type[Any], above: Key | None = None) -> dict[type[Any], str]:
    """The path of each section's class, with a dot at its end."""
    found = {model: f"{above.path}." if above else ""}
    for key in fields_of(model, above):
        found |= sections_below(key.section, key) if key.section else {}
    return found


def in_a_worker() -> bool:
    """Whether a worker's code is among the callers."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.startswith(WORKERS):
            return True
    return False


@pytest.mark.slow
def test_a_worker_reads_no_key_that_would_not_reach_a_machine_that_joins(
    harness: Callable[..., WorkerHarness], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whose = {key.path: key.whose for key in keys_of(Config)}
    paths, read = sections_below(Config), set[str]()

    def noted(section: Section, name: str) -> Any:
        value = object.__getattribute__(section, name)
        if (path := f"{paths.get(type(section))}{name}") in whose and in_a_worker():
            read.add(path)
        return value

    run = harness()
    monkeypatch.setattr(Section, "__getattribute__", noted)
    run.begin(["What is the sum of 1 and 2?"], tensors_of(folder), wanted="3")
    run.worker("w1")
    run.drain(1)
    assert {"model.dtype", "queue.stall_deadline_s", "weights.public_key"} <= read
    assert not {path for path in read if whose[path] is None}
