"""`echo-queue show`: a group as a person reads it, wherever it is."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tokenizers import Tokenizer, models

from echo_queue.cli.inspect.show import find, tokenizer_of
from echo_queue.cli.transcript import Transcript, TranscriptPart, draw, transcript
from echo_queue.config import Config
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.queue import UpdateRecord
from echo_queue.records import NOTHING, Observed, PartialGroup, PartialSample, Sample, Span, Tokens, Version
from echo_queue.reporting.trained_groups import TrainedGroups
from tests.cli.test_commands import block, echo_queue
from tests.learner.synthetic import group, with_observed
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, group_of, partial_of

TABLE = ["bet", "check", "fold", "<end>", "They call.", "Public card: K.", "Your move?"]


def words(tokens: Tokens) -> str:
    return " ".join(TABLE[token] for token in tokens if TABLE[token] != "<end>")


GAME = Sample(
    tokens=np.array([0, 3, 4, 5, 6, 1, 3], np.int32),
    logprobs=np.array([-0.5, -0.1, 0, 0, 0, -0.7, -0.1], np.float32),
    spans=(Span(0, 3), Span(1, 4)),
    reward=-2.0,
    finish="stop",
    observed=(Observed(2, 5),),
)


def test_a_transcript_tells_who_said_what_and_which_weights_drew_it() -> None:
    parts = (
        TranscriptPart("model", "bet", 2),
        TranscriptPart("environment", "They call. Public card: K. Your move?", 3),
    )
    told = transcript(GAME, words)
    assert told == Transcript((*parts, TranscriptPart("model", "check", 2)), {3: 1, 4: 3}, -2.0, "stop")
    begun = PartialSample(GAME.tokens[:5], GAME.logprobs[:5], GAME.spans, GAME.observed)
    assert transcript(begun, words) == Transcript(parts, {3: 1, 4: 1}, None, None)
    assert transcript(NOTHING, words).drawn == {}


def test_each_line_says_who_speaks_and_samples_that_are_alike_are_told_once() -> None:
    page = StringIO()
    short = transcript(replace(GAME, tokens=GAME.tokens[:2], logprobs=GAME.logprobs[:2], observed=()), words)
    played = [transcript(GAME, words), short, transcript(GAME, words)]
    draw(Console(file=page), "hands/0/1: trained", "Your card: J.\nYour move?", played)
    assert page.getvalue().splitlines() == [
        "hands/0/1: trained",
        "       prompt │ Your card: J.",
        "              │ Your move?",
        "",
        "samples 0, 2  reward -2  ended by stop  4 tokens sampled (1 by version 3, 3 by version 4)  3 read",
        "        model │ bet",
        "  environment │ They call. Public card: K. Your move?",
        "        model │ check",
        "",
        "sample 1  reward -2  ended by stop  2 tokens sampled (1 by version 3, 1 by version 4)",
        "        model │ bet",
    ]


def test_on_a_terminal_the_sides_have_colours() -> None:
    page = StringIO()
    draw(Console(file=page, force_terminal=True, color_system="standard"), "x", None, [transcript(GAME, words)])
    assert "\x1b[1;32mbet" in page.getvalue() and "\x1b[36mThey call." in page.getvalue()


def test_on_a_narrow_terminal_each_turn_stays_behind_its_speaker() -> None:
    page = StringIO()
    narrow = Console(file=page, force_terminal=True, color_system=None, width=40)
    draw(narrow, "x", "Your card: J. Your move, please?", [transcript(GAME, words)])
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    assert lines[:5] == [
        "x",
        "       prompt │ Your card: J. Your move,",
        "              │ please?",
        "",
        "sample 0  reward -2  ended by stop  4",
    ]
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("width", [60, 80])
def test_a_header_that_is_too_long_goes_on_below_its_own_text(width: int) -> None:
    page = StringIO()
    terminal = Console(file=page, force_terminal=True, color_system=None, width=width)
    where = "set/0/1: trained, in the update that made 1.7; made by a-worker-with-a-long-name-on-a-machine"
    sample = transcript(GAME, words)
    draw(terminal, where, None, [sample, replace(sample, reward=0.0), sample])
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if line and " │" not in line]
    assert [line for line in heads if not line.startswith(" ")] == [
        next(line for line in heads if line.startswith(first)) for first in ("set/0/1", "samples 0, 2", "sample 1")
    ]
    whole = " ".join(" ".join(heads).split())
    assert "ended by stop 4 tokens sampled (1 by version 3, 3 by version 4) 3 read sample 1 reward +0" in whole
    places = [len(line) - len(line.lstrip()) for line in heads if line.startswith(" ")]
    assert places == [2, len("samples 0, 2  "), len("sample 1  ")]


def test_of_many_samples_that_are_alike_every_number_and_fact_is_shown() -> None:
    page = StringIO()
    narrow = Console(file=page, force_terminal=True, color_system=None, width=40)
    draw(narrow, "x", None, 32 * [transcript(GAME, words)])
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    assert max(map(len, lines)) <= 40
    shown = " ".join(lines)
    assert all(f" {number}" in shown for number in range(32))
    assert {"reward", "-2", "sampled", "read"} <= set(shown.split())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has ended: no server, and groups that its learner has kept."""
    (tmp_path / "run.toml").write_text('[run]\nname = "t"\ndir = "out"\n[learner]\nbatch_groups = 2\n')
    config = Config.model_validate({"run": {"name": "t", "dir": tmp_path / "out"}, "learner": {"batch_groups": 2}})
    talk = with_observed(group(1), [(1, 3)], [], [])
    TrainedGroups(config).keep(Version(1, 7), [group(0), talk])
    return tmp_path


@pytest.mark.slow
def test_a_trained_group_is_shown_when_the_run_is_over(run: Path) -> None:
    done = echo_queue("show", "run.toml", "set/0/1", cwd=run)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == "set/0/1: trained, in the update that made 1.7; made by worker"
    assert sum(line.startswith("sample ") for line in lines) == 3
    assert [line.split(" │ ")[0].strip() for line in lines if " │ " in line][:4] == [
        "prompt", "model", "environment", "model"
    ]  # fmt: skip
    newest = json.loads(echo_queue("show", "run.toml", "--json", cwd=run).stdout)
    assert (newest["task"], len(newest["samples"])) == ("set/0/0", 3)
    assert newest["samples"][0]["drawn"] == {"0": 4}


@pytest.mark.slow
def test_showing_needs_no_torch(run: Path) -> None:
    code = block("torch", "transformers", "workers", "learner") + (
        "from pathlib import Path\nfrom echo_queue.config.loading import load\n"
        "from echo_queue.cli.inspect.show import show\n"
        "show(load(Path('run.toml')), 'set/0/1', as_json=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_without_a_server_a_group_that_is_not_kept_is_one_clear_error(run: Path) -> None:
    done = echo_queue("show", "run.toml", "set/0/99", cwd=run)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "→" in done.stderr


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    server = S3Server(tmp_path / "s3", StoreKeys("SHOWTESTKEY000000000", "s" * 40))
    server.start()
    store = ObjectStore(server.endpoint("tests"), "t")
    store.create_bucket()
    yield store
    server.stop()


def test_groups_in_replay_partials_and_the_dead_are_found(queue: Clients, store: ObjectStore) -> None:
    harness = QueueHarness(queue)
    made, begun, dead, idle = harness.lease(4)
    harness.complete((made,))
    queue.progress("w1", [PartialGroup(begun.id, 0, (partial_of(0), replace(partial_of(0), finish="stop")))])
    queue.bury(dead.id, "no such column")
    waits, goes_on, over = (find(queue, store, task.id) for task in (made, begun, dead))
    assert waits is not None and "not trained yet; made by w1" in waits.where and len(waits.samples) == 2
    assert goes_on is not None and [one.finish for one in goes_on.samples] == [None, "stop"]
    assert over is not None and "no such column" in over.where and over.samples == ()
    assert find(queue, store, idle.id) is None
    newest = find(queue, store, None)
    assert newest is not None and newest.task == made.id


def test_without_any_group_the_last_of_the_dead_is_shown(queue: Clients, store: ObjectStore) -> None:
    harness = QueueHarness(queue)
    assert find(queue, store, None) is None
    for task in harness.lease(2):
        queue.bury(task.id, f"no such column in {task.id}")
    shown = find(queue, store, None)
    assert shown is not None and shown.task == queue.dead(1)[0].id and f"no such column in {shown.task}" in shown.where


def test_a_group_that_the_learner_has_says_so_until_a_checkpoint_holds_it(
    queue: Clients, store: ObjectStore, tmp_path: Path
) -> None:
    harness = QueueHarness(queue)
    (task,) = harness.lease(1)
    harness.complete((task,))
    lineage = queue.resume().lineage
    queue.drain(lineage, 1)
    queue.advance(lineage, 1, 1, 2.0)
    in_hand = find(queue, store, task.id)
    assert in_hand is not None and "in the learner's hands" in in_hand.where
    queue.record(lineage, [UpdateRecord(Version(lineage, 1), "0.1.0", task.id, b"{}")])
    queue.advance(lineage, 1, 1, 2.0)
    newest = find(queue, store, None)
    assert newest is not None and newest.where == "trained, in the update that made 1.1; made by w1"
    kept = TrainedGroups(Config.model_validate({"run": {"name": "t", "dir": tmp_path}}))
    kept.keep(Version(lineage, 1), [group_of(task, "w1", harness.version)])
    kept.send(store)
    queue.commit(lineage, "1/1", [task.id])
    for asked in (None, task.id):
        trained = find(queue, store, asked)
        assert trained is not None and trained.where == newest.where


def test_the_marks_between_the_roles_of_a_chat_are_shown(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<|user|>": 0, "<|assistant|>": 1, "one": 2}, unk_token="one"))
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = Config.model_validate({"run": {"name": "t", "dir": "t"}, "model": {"base": str(tmp_path)}})
    assert tokenizer_of(config)(np.array([0, 2, 1], np.int32)) == "<|user|> one <|assistant|>"
