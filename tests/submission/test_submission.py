"""Prompt sets through a real Celery worker, a real Redis and a real S3 server."""

import signal
import time
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from echo_queue.config import Config
from echo_queue.errors import ConfigError, DeadlineError, PromptError
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import Monitor
from echo_queue.records import PromptRow, Version
from echo_queue.submission import Progress, arrival, submit
from echo_queue.submission.celery.app import build
from echo_queue.submission.configured_sets import chosen
from echo_queue.submission.declaration import declare_and_send
from echo_queue.submission.expand import expand
from echo_queue.submission.length_features import buckets
from echo_queue.submission.length_limits import limits_of
from tests.queue.clients import Clients
from tests.submission.conftest import SubmissionHarness
from tests.submission.test_length_limits import make_model
from tests.waiting import wait_until

ROWS = [{"prompt": f"prompt {index}", "answer": index} for index in range(950)]
EXPECTED = {(0, index): PromptRow(f"prompt {index}", {"answer": index}) for index in range(950)}


def write(path: Path, rows: list[dict[str, object]]) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=333)
    else:
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return str(path)


@pytest.mark.slow
def test_every_prompt_of_any_source_arrives_exactly_once_and_again_adds_nothing(
    harness: SubmissionHarness, tmp_path: Path
) -> None:
    harness.celery()
    for path in (tmp_path / "prompts.jsonl", tmp_path / "prompts.parquet"):
        config = harness.config(prompts__set=path.suffix[1:])
        source = write(path, ROWS)
        first, second = submit(config, source), submit(config, source)
        assert (first.prompts, first.chunks, first.new) == (950, 10, True)
        assert second.new is False
        assert harness.rows() == EXPECTED

    chat = {"prompt": [{"role": "user", "content": "Hi"}], "id": None}
    submit(harness.config(prompts__set="chat"), write(tmp_path / "chat.jsonl", [chat]))
    assert harness.rows() == {(0, 0): PromptRow([{"role": "user", "content": "Hi"}], {"id": None})}

    options = "{size = 130, seed = 5}"
    config = harness.config(prompts__set="made", prompts__source="reasoning-gym:chain_sum", prompts__options=options)
    submit(config)
    rows = harness.rows()
    assert [rows[0, index].columns["index"] for index in range(130)] == list(range(130))

    config = harness.config(prompts__set="twice", prompts__epochs=2)
    submit(config, write(tmp_path / "few.jsonl", ROWS[:120]))
    assert sorted(harness.rows()) == [(epoch, index) for epoch in range(2) for index in range(120)]

    done = harness.python(
        f"import os; os.chdir({str(tmp_path)!r})\n"
        "from echo_queue.submission import submit_prompt_set\n"
        "print(submit_prompt_set.delay('few.jsonl', set='delayed', epochs=2).get(timeout=60))\n"
        "try: submit_prompt_set.delay('few.jsonl', sett='x').get(timeout=60)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "submit_prompt_set.delay(source='none.jsonl', set='failed').get(timeout=60)"
    )
    assert (
        "SubmissionError set prompts was not submitted\nprompts.sett: unknown key\n    → did you mean set?"
        in done.stdout
    )
    assert "'prompts': 120" in done.stdout, done.stderr
    assert done.returncode == 1, "what failed fails for whoever sent it"
    assert f"SubmissionError: set failed was not submitted\n{tmp_path / 'none.jsonl'}: cannot be read" in done.stderr
    refused = Monitor(harness.admin.caller).refused_sets()
    assert refused.keys() == {"failed", "prompts"} and "none.jsonl: cannot be read" in refused["failed"]
    wait_until(lambda: (arrival := harness.admin.submission_counts("delayed")) and arrival.settled, "the delayed set")
    assert len(harness.rows()) == 240
    assert harness.admin.audit().ok


@pytest.mark.slow
def test_what_a_killed_worker_lost_is_sent_again_by_the_next_one(harness: SubmissionHarness, tmp_path: Path) -> None:
    source = write(tmp_path / "prompts.jsonl", ROWS * 10)
    config = harness.config(prompts__chunk=50)
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config, source))
    for _ in range(2):
        before = arrived(queue)
        worker = harness.celery(processes=2)
        wait_until(lambda before=before: arrived(queue) > before + 40, "some chunks")
        harness.kill(worker)
    assert arrived(queue) < 190, "the kills came too late to show anything"
    # What the broker still knows is forgotten as well: only the submission status in Redis is left.
    harness.admin.client.delete(*harness.admin.client.keys("eq-celery:*"))
    harness.celery(processes=2)
    wait_until(lambda: (arrival := queue.submission_counts("prompts")) and arrival.settled, "the reconciler")
    assert sorted(harness.rows()) == [(0, index) for index in range(9_500)]
    assert harness.admin.audit().ok


@pytest.mark.slow
def test_what_is_lost_in_the_broker_is_sent_again(harness: SubmissionHarness, tmp_path: Path) -> None:
    config = harness.config()
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config, write(tmp_path / "prompts.jsonl", ROWS)))
    harness.admin.client.delete(*harness.admin.client.keys("eq-celery:*"))
    harness.celery()
    wait_until(lambda: (arrival := queue.submission_counts("prompts")) and arrival.settled, "the reconciler", 20.0)
    assert harness.rows() == EXPECTED


@pytest.mark.slow
def test_a_restart_of_redis_ends_no_celery_worker_and_loses_no_chunk(
    harness: SubmissionHarness, shared_redis: RedisServer, tmp_path: Path
) -> None:
    source = write(tmp_path / "prompts.jsonl", ROWS * 10)
    config = harness.config(prompts__chunk=50)
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config, source))
    worker = harness.celery(processes=2)
    for _ in range(2):
        before = arrived(queue)
        wait_until(lambda before=before: arrived(queue) > before + 10, "some chunks")
        shared_redis.kill()
        time.sleep(0.5)  # the worker cannot reach the broker
        shared_redis.start()
    wait_until(lambda: arrived(queue) == 190, "the rest")
    assert worker.poll() is None
    assert sorted(harness.rows()) == [(0, index) for index in range(9_500)]
    assert harness.admin.audit().ok


@pytest.mark.slow
def test_a_celery_worker_ends_with_its_terminal_and_does_not_begin_anew(harness: SubmissionHarness) -> None:
    worker = harness.celery()
    wait_until(lambda: "ready." in harness.log(0).read_text(), "the worker")
    worker.send_signal(signal.SIGHUP)
    assert worker.wait(60) == 0
    assert "Restarting" not in harness.log(0).read_text()


def arrived(queue: Clients) -> int:
    arrival = queue.submission_counts("prompts")
    return arrival.arrived if arrival else 0


def test_a_bad_line_is_named_and_nothing_is_declared(harness: SubmissionHarness, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n' * 250 + b"{'prompt'}\n")
    with pytest.raises(PromptError, match=r"prompts\.jsonl:251: is not JSON"):
        submit(harness.config(), str(path))
    assert harness.admin.submission_status("prompts") is None


def test_a_prompt_too_long_for_the_model_is_named_and_nothing_is_declared(
    harness: SubmissionHarness, tmp_path: Path
) -> None:
    make_model(tmp_path / "base")
    source = write(tmp_path / "prompts.jsonl", [*ROWS[:120], {"prompt": "xyzq" * 100}])
    with pytest.raises(PromptError, match=r"prompts\.jsonl:121: its prompt has 401 tokens, the model takes 256"):
        submit(harness.config(model__max_prompt_tokens=256), source)
    assert harness.admin.submission_status("prompts") is None


@pytest.mark.slow
def test_a_chunk_refused_late_is_reported_once_and_mended_by_submitting_again(
    harness: SubmissionHarness, tmp_path: Path
) -> None:
    """The submitter has no tokenizer; the Celery worker has."""
    rows = [*ROWS[:120], {"prompt": "xyzq" * 100}]
    source = write(tmp_path / "prompts.jsonl", rows)
    config = harness.config()
    queue, app = Clients.connected_as(config, "submitter"), build(config)
    declare_and_send(config, queue, app, chosen(config, source))
    limits = limits_of(make_model(tmp_path / "model"), 256)
    assert expand(queue, harness.store, limits, "prompts", 0)
    assert not expand(queue, harness.store, limits, "prompts", 1)
    with pytest.raises(PromptError, match=r"prompts\.jsonl:121: its prompt has 401 tokens") as error:
        wait(harness, queue)
    assert len(error.value.problems) == 1
    assert queue.waiting_chunk("prompts", 1) is None, "the reconciler would send it for ever"

    rows[120] = {"prompt": "short"}
    write(tmp_path / "prompts.jsonl", rows)
    harness.celery()
    assert submit(config, source).new is False
    assert harness.rows()[0, 120] == PromptRow("short", {})


def wait(harness: SubmissionHarness, queue: Clients) -> None:
    from echo_queue.submission.arrival import arrive

    config = harness.config()
    arrive(config, queue, build(config), "prompts", lambda _: None)


@pytest.mark.slow
def test_a_file_that_changed_after_it_was_submitted_is_refused(harness: SubmissionHarness, tmp_path: Path) -> None:
    source = write(tmp_path / "prompts.jsonl", ROWS)
    config = harness.config()
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config, source))
    write(tmp_path / "prompts.jsonl", [*ROWS[:150], {"prompt": "other", "answer": 150}, *ROWS[151:]])
    harness.celery()
    with pytest.raises(PromptError, match="rows 101 to 200 are not those that were submitted"):
        wait(harness, queue)
    write(tmp_path / "prompts.jsonl", ROWS)
    submit(config, source)
    assert harness.rows() == EXPECTED


def test_a_name_that_stands_for_other_prompts_is_refused(harness: SubmissionHarness, tmp_path: Path) -> None:
    config = harness.config()
    submit(config, write(tmp_path / "a.jsonl", ROWS[:150]), wait=False)
    with pytest.raises(PromptError, match=r"prompts: it holds other prompts, of .*a\.jsonl"):
        submit(config, write(tmp_path / "b.jsonl", [*ROWS[:149], {"prompt": "x"}]), wait=False)
    with pytest.raises(PromptError, match="prompts is 150, not 140"):
        submit(config, write(tmp_path / "b.jsonl", ROWS[:140]), wait=False)


def test_the_same_prompts_from_another_path_are_the_same_set(harness: SubmissionHarness, tmp_path: Path) -> None:
    config = harness.config()
    submit(config, write(tmp_path / "a.jsonl", ROWS[:150]), wait=False)
    assert submit(config, write(tmp_path / "moved.jsonl", ROWS[:150]), wait=False).new is False


def test_what_is_known_of_the_answers_lengths_arrives_with_the_prompts(
    harness: SubmissionHarness, tmp_path: Path
) -> None:
    levels = ["easy", "hard", None] * 40
    source = write(tmp_path / "prompts.jsonl", [{"prompt": "p", "level": level} for level in levels])
    config = harness.config(prompts__length_feature="level")
    queue, app = Clients.connected_as(config, "submitter"), build(config)
    declare_and_send(config, queue, app, chosen(config, source))
    declare_and_send(config, queue, app, chosen(config, source, "by-prompt", length_feature=""))
    for name in ("prompts", "by-prompt"):
        assert all(expand(queue, harness.store, None, name, number) for number in range(2))
    rows = [PromptRow("p", {"level": level}) for level in levels]
    known = {name: harness.admin.client.get(harness.admin.keys.lengths(name)) for name in ("prompts", "by-prompt")}
    assert known == {"prompts": buckets(rows, "level"), "by-prompt": buckets(rows, "")}


def arrive_whole(harness: SubmissionHarness, config: Config, source: str) -> None:
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config, source))
    for number in range(2):
        assert expand(queue, harness.store, None, "prompts", number)


@pytest.mark.parametrize("change", ["a line more", "another line", "nothing left"])
def test_a_run_goes_on_with_a_set_that_has_arrived_whatever_its_source_has_become(
    harness: SubmissionHarness, tmp_path: Path, change: str
) -> None:
    source = write(tmp_path / "prompts.jsonl", ROWS[:150])
    arrive_whole(harness, harness.config(), source)
    match change:
        case "a line more":
            write(tmp_path / "prompts.jsonl", ROWS[:151])
        case "another line":
            write(tmp_path / "prompts.jsonl", [*ROWS[:149], ROWS[200]])
        case "nothing left":
            Path(source).unlink()
    again = harness.config(prompts__source=source, prompts__priority=3)
    with pytest.raises(PromptError):
        submit(again)
    sent = submit(again, within_run=True)
    assert (sent.prompts, sent.new, len(sent.ignored)) == (150, False, 1)
    assert "set prompts has arrived whole and stays as it is" in sent.ignored[0].what
    assert "ECHO_QUEUE_PROMPTS__SET=prompts-2" in sent.ignored[0].fix
    assert f"ECHO_QUEUE_RUN__NAME={again.run.name}-2" in sent.ignored[0].fix, "its servers are the user's own"
    assert harness.admin.client.hget(harness.admin.keys.set("prompts"), "priority") == b"3"
    assert len(harness.rows()) == 150


def test_a_set_that_has_not_arrived_whole_still_needs_its_source(harness: SubmissionHarness, tmp_path: Path) -> None:
    config, source = harness.config(), write(tmp_path / "prompts.jsonl", ROWS[:150])
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config, source))
    Path(source).unlink()
    with pytest.raises(PromptError, match="cannot be read"):
        submit(config, source, within_run=True)


def test_within_a_run_nothing_is_declared_before_a_learner_has_said_what_checkpoints_hold(
    harness: SubmissionHarness, tmp_path: Path
) -> None:
    source = write(tmp_path / "prompts.jsonl", ROWS[:150])
    hasty = harness.config(queue__stall_deadline_s=0.1)
    with pytest.raises(DeadlineError, match="no learner has begun within 0 s"):
        submit(hasty, source, within_run=True)
    assert harness.admin.submission_status("prompts") is None
    others = harness.admin.resume(Version(1, 5), floor=1, sets={"prompts": "the digest of other prompts"})
    with pytest.raises(PromptError, match="checkpoints of this run hold other prompts under this name"):
        submit(harness.config(), source, within_run=True)
    assert harness.admin.set_digests(others.lineage, ["prompts"]) == {"prompts": "the digest of other prompts"}


def test_a_misspelled_column_is_an_error_before_anything_is_declared(
    harness: SubmissionHarness, tmp_path: Path
) -> None:
    source = write(tmp_path / "prompts.jsonl", [{"prompt": "p", "level": 1}])
    config = harness.config(prompts__length_feature="levle")
    with pytest.raises(PromptError, match=r"prompts\.jsonl:1: has no column `levle`"):
        submit(config, source)
    assert harness.admin.submission_status("prompts") is None


def test_a_set_of_own_code_arrives_where_the_configuration_names_that_code_and_is_refused_elsewhere(
    harness: SubmissionHarness,
) -> None:
    own, hands = "configs.poker:Hands", '{ size = 150, seed = 1, opponent = "tight" }'
    config = harness.config(prompts__source=own, prompts__options=hands)
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config))
    assert expand(queue, harness.store, None, "prompts", 0, own=own)
    assert not expand(queue, harness.store, None, "prompts", 1, own="prompts.jsonl")
    with pytest.raises(PromptError, match=r"configs\.poker:Hands is not what this machine's configuration names"):
        wait(harness, queue)


def test_a_file_that_only_the_submitter_can_read_is_refused_by_name_and_machine(
    harness: SubmissionHarness, tmp_path: Path
) -> None:
    source = write(tmp_path / "prompts.jsonl", ROWS[:150])
    config = harness.config()
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config, source))
    Path(source).unlink()
    assert not expand(queue, harness.store, None, "prompts", 0)
    assert not expand(queue, harness.store, None, "prompts", 1)
    with pytest.raises(PromptError, match="a disk they share") as error:
        wait(harness, queue)
    assert len(error.value.problems) == 1, "both chunks failed for one reason"


def test_waiting_for_celery_workers_that_are_not_there_is_told_and_has_a_deadline(
    harness: SubmissionHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "QUIET_S", 0.2)
    seen = list[Progress]()
    told = r"2 of 2 chunks have not arrived, none in the last 1 s; 2 messages wait for a Celery worker"
    with pytest.raises(DeadlineError, match=told):
        submit(
            harness.config(submission__deadline_s=1),
            write(tmp_path / "prompts.jsonl", ROWS[:150]),
            progress=seen.append,
        )
    (waits,) = [progress.waits for progress in seen if progress.waits]
    assert waits.endswith("2 messages wait for a Celery worker"), "told once, before the deadline"


@pytest.mark.slow
def test_progress_is_told_from_the_first_row_to_the_last_chunk(harness: SubmissionHarness, tmp_path: Path) -> None:
    harness.celery()
    seen = []
    submit(harness.config(), write(tmp_path / "prompts.jsonl", ROWS), progress=seen.append)
    assert seen[0].scanned == 100
    assert [step.arrived for step in seen] == sorted(step.arrived for step in seen)
    assert (seen[-1].scanned, seen[-1].arrived) == (950, 950)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"ECHO_QUEUE_STALENESS__S": "x"}, "staleness.s: "),
        pytest.param({"ECHO_QUEUE_CONFIG": ""}, "ECHO_QUEUE_CONFIG: is not set", marks=pytest.mark.slow),
        pytest.param({"ECHO_QUEUE_CONFIG": "/nowhere.toml"}, "/nowhere.toml: cannot be read", marks=pytest.mark.slow),
        pytest.param(
            {"ECHO_QUEUE_REDIS__URL": "embedded"},
            "the embedded services of this run have not started on this machine",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_celery_worker_without_a_usable_config_says_so_in_one_error(
    harness: SubmissionHarness, environ: dict[str, str], message: str
) -> None:
    harness.environ |= environ
    worker = harness.celery()
    assert worker.wait(timeout=60) != 0
    log = harness.log(0).read_text()
    assert message in log
    assert "→" in log
    assert "Traceback" not in log


def test_what_is_given_must_fit_the_configuration(harness: SubmissionHarness) -> None:
    with pytest.raises(ConfigError, match=r"prompts\.order"):
        chosen(harness.config(), "a.jsonl", "a", order="random")
    with pytest.raises(ConfigError, match=r"prompts\.epoch"):
        chosen(harness.config(), "a.jsonl", "a", epoch=2)
