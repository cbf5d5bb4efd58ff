"""Every document that `--json` prints is one of the published JSON Schema, with nothing more and nothing less in it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from typer.testing import CliRunner

from echo_queue.cli.commands import app
from echo_queue.cli.documents import documents, schemas
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.queue import Chunk, Heartbeat, PromptSet, UpdateRecord
from echo_queue.records import PromptShard, Version
from echo_queue.reporting.run_record import record_of
from tests.capacity.fleets import ON, ROOT, WORKED
from tests.cli.test_weights import PublishedRun
from tests.models import MODELS
from tests.queue.clients import Clients
from tests.queue.queue_harness import group_of
from tests.synthetic import update

FILES = {"plan": next(iter(WORKED.values())), "simulate": ROOT / "configs" / "fleets" / "qwen3-0.6b-spot.toml"}
MORE = {"estimate": ("--model-config", str(MODELS / "qwen3-8b.json")), "plan": ("--on", str(ON))}
BEAT = Heartbeat("engine", Version(1, 9), "generating", published_ms=1, release="0.0.9")
RESULT = EvaluationResult("held-out", Version(1, 0), round=1, update=0, prompts=8, samples=1, mean=0.5)
ELSEWHERE = ("eval",)
"""Documents of other programs, whose own tests show them."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "schema.json"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishedRun]:
    """A run with something of everything: a group, a death, a failed chunk, an update, workers, versions, a score."""
    run = PublishedRun(tmp_path_factory.mktemp("documents"))
    queue = Clients.connected_as(run.config, "admin")
    queue.declare(PromptSet("a", "source"), [Chunk(0, 0, 4), Chunk(1, 4, 4)])
    queue.submit("a", 0, PromptShard("shard", 0, 4))
    queue.reject("a", Chunk(1, 4, 4), "line 3 is no JSON")
    queue.heartbeat("w1", BEAT)
    made, dead, *_ = queue.lease("w1", BEAT.version, 3).tasks
    queue.complete("w1", [group_of(made, "w1", BEAT.version)])
    queue.bury(dead.id, "Traceback\nKeyError: 'answer'")
    queue.record(
        1, [record_of(update(1, t_bcast_s=0.0)), UpdateRecord(Version(1, 2), "0.0.9", made.id, b"of another form")]
    )
    queue.advance(1, 0, 0, 1.0)
    queue.client.xadd(queue.caller.keys.evaluations, {"line": RESULT.line})
    yield run
    run.services.stop()


def asked(run: PublishedRun, command: str) -> Any:
    words = [*command.split(), str(FILES.get(command, run.path)), "--json", *MORE.get(command, ())]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in documents() if one not in ELSEWHERE])
def test_what_a_command_prints_is_what_its_schema_says(run: PublishedRun, command: str) -> None:
    published = schemas()
    Draft202012Validator.check_schema(published)
    validator = Draft202012Validator({**published["properties"][command], "$defs": published["$defs"]})
    printed = asked(run, command)
    assert [error.message for error in validator.iter_errors(printed)] == []
    if isinstance(printed, dict):
        assert list(validator.iter_errors(printed | {"one": "more"})), "nothing else may be in it"


def test_a_status_names_deaths_failures_and_skews_and_knows_no_zero_for_what_is_not_known(run: PublishedRun) -> None:
    Clients.connected_as(run.config, "admin").heartbeat("w1", BEAT)  # the one before may have been forgotten
    found = asked(run, "status")
    (death,) = found["dead"]
    assert (death["reason"], death["tasks"]) == ("KeyError: 'answer'", 1)
    assert found["failed_sets"] == [{"name": "a", "chunks": 2, "failed": 1, "reason": "line 3 is no JSON"}]
    (score,) = found["evaluations"]
    assert (score["evaluation"], score["version"], score["mean"], score["low"]) == ("held-out", "1.0", 0.5, None)
    assert "the learner runs release 0.0.9, w1 runs release 0.0.9" in found["skew"]
    assert (found["update"]["version"], found["update"]["kappa"], found["training"]["t_bcast_s"]) == (1, None, None)
    shown = CliRunner().invoke(app, ["status", str(run.path)], catch_exceptions=False).stdout
    words = " ".join(shown.split())
    Clients.connected_as(run.config, "submitter").tell_refusal("more", "more.jsonl: cannot be read")
    Clients.connected_as(run.config, "submitter").tell_refusal("a", "a set that is there is not named twice")
    assert asked(run, "status")["failed_sets"][0] == {
        **{"name": "more", "chunks": 0, "failed": 0},
        "reason": "more.jsonl: cannot be read",
    }
    shown = CliRunner().invoke(app, ["status", str(run.path)], catch_exceptions=False).stdout
    assert "set more was not submitted: more.jsonl: cannot be read" in " ".join(shown.split())
    for told in ("1 prompt died: KeyError: 'answer'", "set a: 1 of 2 chunks cannot be read: line 3 is no JSON"):
        assert told in words


def test_the_published_schema_is_that_of_this_code() -> None:
    assert json.loads(DOCUMENT.read_text(encoding="utf-8")) == json.loads(json.dumps(schemas())), "make docs"
