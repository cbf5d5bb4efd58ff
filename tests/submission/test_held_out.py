"""Held-out sets are submitted with the run's prompts, by the same code; one version answers them."""

from collections.abc import Sequence

import pytest

from echo_queue.config import Config
from echo_queue.errors import ConfigError, PromptError
from echo_queue.records import PromptRow, Version
from echo_queue.submission import submit
from echo_queue.submission.celery.app import build
from echo_queue.submission.configured_sets import chosen, held_out_sets
from echo_queue.submission.declaration import declare_and_send
from echo_queue.submission.shards import ShardReader
from tests.queue.clients import Clients
from tests.submission.conftest import SubmissionHarness
from tests.submission.test_submission import write
from tests.waiting import wait_until

TRAINED = [{"prompt": f"prompt {index}", "answer": index} for index in range(250)]
HELD = [{"prompt": f"question {index}", "answer": index} for index in range(130)]


def configured(
    harness: SubmissionHarness, held_out: Sequence[dict[str, object]] = HELD, environment: str = ""
) -> Config:
    """The run with [prompts] `train` and the evaluation `held`, which may have an environment of its own."""
    folder = harness.path.parent
    held = write(folder / "held.jsonl", list(held_out))
    before = harness.path.read_text().partition("[[evaluation]]")[0]
    harness.path.write_text(f'{before}\n[[evaluation]]\nname = "held"\nsource = "{held}"\n{environment}')
    harness.environ["ECHO_QUEUE_PROMPTS__SET"] = "train"
    harness.environ["ECHO_QUEUE_PROMPTS__SOURCE"] = write(folder / "train.jsonl", TRAINED)
    return harness.config()


def asked(harness: SubmissionHarness) -> dict[int, PromptRow]:
    """Returns the rows of the first tasks of a round of evaluation, by index."""
    reader, queue = ShardReader(harness.store, cache_shards=1000), harness.admin
    lineage = queue.resume().lineage
    assert queue.evaluate(lineage, Version(0, 0), "held") is not None
    tasks = [task for task in queue.lease("reader", Version(0, 0), 1000).tasks if task.version is not None]
    return {task.index: reader.row(task) for task in tasks}


@pytest.mark.slow
def test_one_submission_brings_the_runs_prompts_and_its_held_out_ones(harness: SubmissionHarness) -> None:
    config = configured(harness)
    harness.celery()
    sent = submit(config)
    assert (sent.set, sent.prompts, sent.new) == ("train", 250, True)
    assert [(one.set, one.prompts, one.chunks, one.new) for one in sent.held_out] == [("held", 130, 2, True)]
    again = submit(config)
    assert (again.new, [one.new for one in again.held_out]) == (False, [False])
    assert harness.admin.status().submitted == 250
    assert harness.rows() == {(0, index): PromptRow(f"prompt {index}", {"answer": index}) for index in range(250)}
    assert harness.admin.audit().ok

    done = harness.python(
        "from echo_queue.submission import submit_prompt_set\n"
        "sent = submit_prompt_set.delay().get(timeout=60)\n"
        "print(sent['set'], sent['new'], [(one['set'], one['new']) for one in sent['held_out']])\n"
        "sent = submit_prompt_set.delay(set='held').get(timeout=60)\n"
        "print(sent['set'], sent['new'], sent['held_out'])\n"
    )
    assert done.stdout == "train False [('held', False)]\nheld False []\n", done.stderr


@pytest.mark.slow
def test_other_prompts_under_the_name_of_a_held_out_set_are_refused(harness: SubmissionHarness) -> None:
    config = configured(harness)
    harness.celery()
    submit(config)
    other = configured(harness, HELD[1:])
    with pytest.raises(PromptError) as refused:
        submit(other)
    (told,) = refused.value.problems
    assert (told.where, told.what) == ("evaluation[0].source", "held: prompts is 130, not 129")
    assert told.fix == "to evaluate other prompts, give that evaluation another name, such as held-2"
    within = submit(other, within_run=True)
    (left,) = within.held_out[0].ignored
    assert within.new is False
    assert left.where == "evaluation[0].source" and "set held has arrived whole and stays as it is" in left.what
    with pytest.raises(PromptError, match="held: prompts is 130, not 250"):
        submit(config, config.prompts.source, set="held")


@pytest.mark.slow
def test_held_out_chunks_that_are_lost_in_the_broker_are_sent_again(harness: SubmissionHarness) -> None:
    config = configured(harness)
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config, set="held"))
    harness.admin.client.delete(*harness.admin.client.keys("eq-celery:*"))
    harness.celery()
    wait_until(lambda: (arrival := queue.submission_counts("held")) and arrival.whole, "the reconciler", 20.0)
    assert asked(harness) == {index: PromptRow(f"question {index}", {"answer": index}) for index in range(130)}


@pytest.mark.parametrize(
    ("environment", "column"),
    [("", ""), ('[evaluation.environment]\nkind = "math"', "answer"), ('[environment]\nkind = "math"', "answer")],
)
def test_a_held_out_row_has_the_columns_that_its_environment_needs(
    harness: SubmissionHarness, environment: str, column: str
) -> None:
    config = configured(harness, [*HELD[:101], {"prompt": "question", "anwser": 3}], environment)
    queue = Clients.connected_as(config, "submitter")
    held, _ = chosen(config)
    if not column:
        (sent,) = declare_and_send(config, queue, build(config), [held])
        assert sent.prompts == 102
        return
    with pytest.raises(PromptError, match=r"held\.jsonl:102: has no column answer") as refused:
        declare_and_send(config, queue, build(config), [held])
    assert len(refused.value.problems) == 1
    assert queue.submission_counts("held") is None


def test_the_sets_of_a_run_are_chosen_by_name_and_held_out_ones_come_first(harness: SubmissionHarness) -> None:
    config = configured(harness)
    assert [prompts.set for prompts in chosen(config)] == ["held", "train"]
    assert chosen(config, set="held") == held_out_sets(config)
    assert [prompts.set for prompts in chosen(config, source="more.jsonl")] == ["train"]
    assert [(more.set, more.source) for more in chosen(config, "more.jsonl", "held")] == [("held", "more.jsonl")]
    with pytest.raises(ConfigError, match=r"evaluation\[0\]\.epochs"):
        chosen(config, set="held", epochs=2)
