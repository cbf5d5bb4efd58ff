"""The components of a mixture are submitted together: all are read, then declared, then sent by turns."""

import base64
import threading
from pathlib import Path

import orjson
import pytest

from echo_queue.config import Config
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.errors import ConfigError, DeadlineError, PromptError
from echo_queue.queue import RunRules
from echo_queue.records import PromptRow
from echo_queue.submission import submit
from echo_queue.submission.celery.app import build
from echo_queue.submission.celery.messages import CHANNEL
from echo_queue.submission.configured_sets import chosen, trained_sets
from echo_queue.submission.declaration import declare_and_send
from echo_queue.submission.length_limits import limits_for
from echo_queue.submission.overlap import trained_too
from tests.queue.clients import Clients
from tests.submission.conftest import RUN, SubmissionHarness
from tests.submission.test_length_limits import make_model
from tests.submission.test_submission import write

MATH = [{"prompt": f"sum {index}", "answer": index} for index in range(250)]
WORDS = [{"prompt": f"word {index}"} for index in range(130)]
BROKER = CELERY_PREFIX.format(run=RUN) + CHANNEL


def configured(harness: SubmissionHarness, words: list[dict[str, object]] = WORDS) -> Config:
    """The run with the components `math`, which is scored by its answers, `words`, and `later`, which has no source."""
    folder, before = harness.path.parent, harness.path.read_text().partition("[[mixture]]")[0]
    harness.path.write_text(
        f"""{before}
        [[mixture]]
        name = "math"
        weight = 3
        source = "{write(folder / "math.jsonl", list(MATH))}"
        environment = {{ kind = "math" }}
        [[mixture]]
        name = "words"
        source = "{write(folder / "words.jsonl", list(words))}"
        epochs = 2
        [[mixture]]
        name = "later"
        """
    )
    return harness.config()


def sent(harness: SubmissionHarness) -> list[tuple[str, int]]:
    """Returns the set and number of each message in the broker, in the order in which they were sent."""
    messages = [orjson.loads(message) for message in harness.admin.client.lrange(BROKER, 0, -1)]
    chunks = [orjson.loads(base64.b64decode(message["body"]))[1] for message in reversed(messages)]
    return [(chunk["set"], chunk["number"]) for chunk in chunks]


def test_the_sets_of_a_mixture_are_those_of_components_with_a_source(harness: SubmissionHarness) -> None:
    config = configured(harness)
    assert [(one.set, one.epochs, one.chunk) for one in chosen(config)] == [("math", 1, 100), ("words", 2, 100)]
    more = chosen(config, "more.jsonl", "words.more", priority=3)
    assert [(one.set, one.source, one.epochs, one.priority) for one in more] == [("words.more", "more.jsonl", 2, 3)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"source": "more.jsonl"}, "prompts.set: is missing, and the run has a mixture"),
        ({"source": "more.jsonl", "set": "maths"}, "prompts.set: maths is the name of no component's set"),
        ({"priority": 3}, "prompts.set: is missing"),
    ],
)
def test_a_set_that_is_of_no_component_is_refused_with_names_that_would_do(
    harness: SubmissionHarness, given: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        chosen(configured(harness), **given)  # type: ignore[arg-type]
    assert told in str(refused.value)
    assert "(math, words, later)" in str(refused.value) and "math.more" in str(refused.value)


def test_a_mixture_without_any_source_has_nothing_to_submit(harness: SubmissionHarness) -> None:
    config = configured(harness)
    later = config.model_copy(update={"mixture": config.mixture[2:]})
    assert trained_sets(later) == ()
    with pytest.raises(ConfigError, match=r"mixture: no component names a source(.|\n)*submit CONFIG FILE --set later"):
        chosen(later)


def test_chunks_of_components_are_sent_by_turns(harness: SubmissionHarness) -> None:
    config = configured(harness)
    queue = Clients.connected_as(config, "submitter")
    done = declare_and_send(config, queue, build(config), chosen(config))
    assert [(one.set, one.prompts, one.chunks, one.new) for one in done] == [
        ("math", 250, 3, True),
        ("words", 130, 2, True),
    ]
    assert sent(harness) == [("math", 0), ("words", 0), ("math", 1), ("words", 1), ("math", 2)]


def test_no_component_is_declared_or_sent_if_one_of_them_cannot_be_read(harness: SubmissionHarness) -> None:
    config = configured(harness, [*WORDS, {"promt": "word"}])
    queue = Clients.connected_as(config, "submitter")
    with pytest.raises(PromptError, match=r"words\.jsonl:131") as refused:
        declare_and_send(config, queue, build(config), chosen(config))
    assert refused.value.set == "words"
    assert [queue.submission_counts(name) for name in ("math", "words")] == [None, None]
    assert not harness.admin.client.exists(BROKER)


def test_a_row_has_the_columns_that_the_environment_of_its_component_needs(harness: SubmissionHarness) -> None:
    config = configured(harness)
    queue = Clients.connected_as(config, "submitter")
    source = write(harness.path.with_name("more.jsonl"), list(WORDS))
    with pytest.raises(PromptError, match="has no column answer"):
        declare_and_send(config, queue, build(config), chosen(config, source, "math.more"))
    (done,) = declare_and_send(config, queue, build(config), chosen(config, source, "words.more"))
    assert (done.set, done.prompts) == ("words.more", 130)


def test_a_prompt_that_is_too_long_for_its_component_names_the_key(harness: SubmissionHarness, tmp_path: Path) -> None:
    config = configured(harness)
    math = config.mixture[0].model_copy(update={"max_prompt_tokens": 4})
    model = config.model.model_copy(update={"base": str(make_model(tmp_path / "model")), "max_prompt_tokens": 64})
    config = config.model_copy(update={"model": model, "mixture": (math, *config.mixture[1:])})
    long = [PromptRow("a b c d e f g h i j k l m n o p", {})]
    limits = limits_for(config, "math.more")
    assert limits is not None
    ((_, told),) = limits.unfit(long)
    assert told.fix == "shorten it, or raise mixture[0].max_prompt_tokens"
    others = limits_for(config, "words")
    assert others is not None and not list(others.unfit(long))


def test_other_prompts_under_the_name_of_a_component_are_refused_with_what_to_do(harness: SubmissionHarness) -> None:
    config = configured(harness)
    queue = Clients.connected_as(config, "submitter")
    declare_and_send(config, queue, build(config), chosen(config))
    other = configured(harness, WORDS[1:])
    with pytest.raises(PromptError) as refused:
        declare_and_send(other, queue, build(other), chosen(other))
    (told,) = refused.value.problems
    assert (told.where, told.what) == ("mixture[1].source", "words: prompts is 130, not 129")
    assert "--set words.2" in told.fix


def test_within_a_run_new_components_wait_for_the_learner_that_knows_them(harness: SubmissionHarness) -> None:
    config = configured(harness).model_copy(deep=True)
    impatient = config.model_copy(update={"queue": config.queue.model_copy(update={"stall_deadline_s": 1.0})})
    queue, admin = Clients.connected_as(config, "submitter"), harness.admin
    rules = RunRules(s=1000, batch=1000, pace=False)
    admin.resume(rules=rules)
    assert queue.takes() and not queue.takes("math")
    with pytest.raises(DeadlineError, match="learner"):
        declare_and_send(impatient, queue, build(config), chosen(config), within_run=True)
    assert queue.submission_counts("math") is None
    threading.Timer(0.5, lambda: admin.resume(rules=RunRules.of(config))).start()
    declare_and_send(config, queue, build(config), chosen(config), within_run=True)
    assert queue.takes("math") and queue.takes("later") and not queue.takes("mat")
    assert queue.submission_counts("words") is not None


def test_prompts_of_any_component_that_are_also_held_out_are_counted(harness: SubmissionHarness) -> None:
    config = configured(harness)
    held = write(harness.path.with_name("held.jsonl"), [*MATH[:2], *WORDS[:1], {"prompt": "new"}])
    values = config.model_dump() | {"evaluation": [{"name": "held", "source": held}]}
    told = [problem.what for problem in trained_too(Config.model_validate(values))]
    assert told == [
        "2 of the first 4 of held are also in math, and trained",
        "1 of the first 4 of held is also in words, and trained",
    ]


@pytest.mark.slow
def test_one_submission_brings_the_prompts_of_all_components(harness: SubmissionHarness) -> None:
    config = configured(harness)
    harness.admin.resume(rules=RunRules.of(config))
    harness.celery()
    done = harness.python(
        "from echo_queue.submission import submit_prompt_set\n"
        "sent = submit_prompt_set.delay().get(timeout=60)\n"
        "print(sent['set'], sent['new'], [(one['set'], one['new']) for one in sent['components']])\n"
        "try: submit_prompt_set.delay('none.jsonl', set='math.none').get(timeout=60)\n"
        "except Exception as error: print(error)\n"
    )
    assert done.stdout.startswith("words True [('math', True)]\nset math.none was not submitted\n"), done.stderr
    again = submit(config)
    assert (again.set, again.new, [(one.set, one.new) for one in again.components]) == (
        "words",
        False,
        [("math", False)],
    )
    assert harness.admin.status().submitted == 250 + 2 * 130
