"""The completer between a real queue, a real tokenizer and real environments; the samples are written by the test."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echo_queue.records import Message, PartialSample
from tests.waiting import wait_until
from tests.workers.small import save_model
from tests.workers.stage import Stage, generated, stage, written
from tests.workers.worker_harness import WorkerHarness
from workers.assignment import Assignment

pytestmark = pytest.mark.slow
LIMIT, SAMPLES = 16, 2
AS_TOLD = {"kind": "function", "function": "tests.workers.rewards:as_told"}
CHAT: list[Message] = [{"role": "user", "content": "yes?"}]
Begin = Callable[..., WorkerHarness]


def answering(run: Begin, folder: Path, **environment: Any) -> WorkerHarness:
    game = {"kind": "interactive", "function": "tests.workers.guessing:Answers"} | environment
    return run(folder, environment=game, rollout={"group_size": SAMPLES}, learner={"batch_groups": 1})


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("chat"), seed=0, chat=True)


@pytest.mark.parametrize("prompt", ["What?", CHAT], ids=["text", "chat"])
def test_an_observation_is_recorded_as_far_as_there_is_room_for_it(
    harness: Begin, chat_folder: Path, prompt: Any
) -> None:
    """… and ends the sample by its length if no room is left to the model."""
    run = answering(harness, chat_folder, max_turns=4)
    with stage(run, chat_folder, [prompt] * 4, answer="0") as one:
        full, cut, huge, short = one.lease(4)
        full.samples[:] = [written(one.prompts, "3", "stop", LIMIT)] * SAMPLES
        cut.samples[:] = [written(one.prompts, "3", "stop", LIMIT - 1)] * SAMPLES
        huge.row.columns["times"] = 10 << 20
        one.submit(full, cut, huge, short)
        groups = {group.task: group for group in generated(one, 4)}
    observed = {name: groups[task.id].samples[0].observed for name, task in
                {"full": full, "cut": cut, "huge": huge, "short": short}.items()}  # fmt: skip
    assert observed["full"] == ()
    assert observed["cut"] == ((LIMIT - 1, LIMIT),)
    assert observed["huge"] == ((2, LIMIT),)
    assert observed["short"] and all(start < end for start, end in observed["short"])
    for group in groups.values():
        assert all(sample.reward == 0.5 for sample in group.samples)
    for one_full in (full, cut, huge):
        assert all((sample.finish, len(sample.tokens)) == ("length", LIMIT) for sample in groups[one_full.id].samples)


def test_an_empty_observation_is_a_message_in_a_chat_and_a_failure_in_a_text(harness: Begin, chat_folder: Path) -> None:
    run = answering(harness, chat_folder, max_turns=2)
    with stage(run, chat_folder, [CHAT, "What?"], answer="") as one:
        one.submit(*one.lease(2))
        (group,) = generated(one, 1)
        assert group.index == 0 and all(sample.observed for sample in group.samples)
        (reason,) = dead(one, 1)
    assert "empty" in reason


@pytest.mark.parametrize("kind", ["function", "interactive"])
def test_an_item_that_cannot_be_handled_costs_its_task_alone_an_attempt(
    harness: Begin, folder: Path, kind: str
) -> None:
    function = {"function": "tests.workers.rewards:as_told", "interactive": "tests.workers.guessing:Answers"}[kind]
    run = harness(environment={"kind": kind, "function": function, "max_turns": 1}, rollout={"group_size": SAMPLES})
    with stage(run, folder, ["one", "two", "three"], answer="0") as one:
        no_text, fine, _ = leased = one.lease(3)
        no_text.samples[:] = [replace(sample, tokens=-sample.tokens) for sample in no_text.samples]
        one.submit(*leased)
        assert {group.task for group in generated(one, 2)} == {other.id for other in leased if other is not no_text}
        (reason,) = dead(one, 1, spoil=lambda sample: replace(sample, tokens=-sample.tokens))
    assert "OverflowError" in reason and "Traceback" in reason and fine.scored


def test_an_answer_that_the_models_template_refuses_costs_its_task_an_attempt(harness: Begin, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", seed=0, chat=True, template="{{ messages[0]['content'] }}")
    with stage(answering(harness, folder), folder, [CHAT, "What?"], answer="0") as one:
        one.submit(*one.lease(2))
        assert [group.index for group in generated(one, 1)] == [1]
        (reason,) = dead(one, 1)
    assert "chat template leaves out the model's own turns" in reason


def test_a_group_that_the_queue_cannot_take_costs_its_task_alone_an_attempt(harness: Begin, folder: Path) -> None:
    run = harness(environment=AS_TOLD, rollout={"group_size": SAMPLES})
    with stage(run, folder, ["one", "two"], max_bytes=400) as one:
        large, _ = leased = one.lease(2)
        large.samples[:] = [written(one.prompts, "3", "stop", LIMIT)] * SAMPLES
        one.submit(*leased)
        assert [group.index for group in generated(one, 1)] == [1]
        (reason,) = dead(one, 1, spoil=lambda sample: written(one.prompts, "3", "stop", LIMIT))
    assert "queue.group_max_bytes is 400" in reason


def dead(one: Stage, tasks: int, spoil: Callable[[PartialSample], PartialSample] = lambda sample: sample) -> list[str]:
    """Tries the tasks that are left until they have died; returns their reasons."""

    def again() -> list[Assignment]:
        leased = one.lease(tasks)
        for assignment in leased:
            assignment.samples[:] = map(spoil, assignment.samples)
        return leased

    def all_dead() -> bool:
        one.completer.check()
        one.run.queue.reclaim()
        one.submit(*again())
        return len(one.run.queue.dead()) >= tasks

    wait_until(all_dead, f"{tasks} dead tasks", 60.0)
    return [task.reason for task in one.run.queue.dead()]
