"""`echo-queue eval`: one model answers held-out sets with a real engine, without a learner and without a queue."""

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from safetensors.torch import save_file
from typer.testing import CliRunner

from echo_queue.cli import commands
from echo_queue.cli.documents import schemas
from echo_queue.cli.inspect.named_model import FoundModel, find
from echo_queue.config import Config, toml_text
from echo_queue.config.loading import load
from echo_queue.errors import DONE, REFUSED, STOPPED, ConfigError, EchoQueueError
from echo_queue.evaluation.answers_file import PromptLine, read
from echo_queue.weights.lora import DESCRIPTION, LoraDescription, merged_weight
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import digest_of
from tests.fork_server import Program
from tests.waiting import DEADLINE_S, wait_until
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, tensors_of
from workers.evaluation.asked import Wishes, configured
from workers.evaluation.served import engine_of

pytestmark = pytest.mark.slow
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(6)]
BATCH = 2
"""Prompts that are answered at once."""


class Evaluated:
    """A configuration with the held-out set `held`, and what evaluations of it write."""

    def __init__(self, directory: Path, base: Path, function: str, **settings: Any) -> None:
        self.directory = directory
        self.held, self.log = directory / "held.jsonl", directory / "log"
        self.gate = directory / "gate"
        values: dict[str, Any] = {
            "run": {"name": "test", "dir": str(directory / "run")},
            "model": {"base": str(base), "max_prompt_tokens": 64, "max_new_tokens": 12},
            "environment": {"kind": "function", "function": function, "processes": 2, "timeout_s": 3600.0},
            "rollout": {"group_size": 2, "concurrent_groups": BATCH},
            "queue": {"max_attempts": 2},
            "evaluation": [{"name": "held", "source": str(self.held), "samples": 2}],
        }
        for section, one in settings.items():
            values[section] = values[section] | one if isinstance(one, dict) else one
        values = {section: one for section, one in values.items() if one is not None}
        self.path = directory / "run.toml"
        self.path.write_text(toml_text.written(values))

    def ask(self, questions: Sequence[str], gated: int | None = None, **columns: object) -> None:
        """Writes the held-out set. The prompt number `gated` cannot be scored before `gate` is there."""
        rows = [
            {"prompt": question, "gate": str(self.gate) if number == gated else "", **columns}
            for number, question in enumerate(questions)
        ]
        self.held.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def start(self, model: FoundModel, out: str, *words: str) -> Program:
        weights = [f"--weights={model.weights}"] if model.weights else []
        options = [f"--model={model.folder}", f"--called={model.called}", f"--out={self.directory / out}", *weights]
        return Program("workers.evaluation", str(self.path), *options, *words, log=self.log)

    def evaluate(self, folder: Path, out: str, *words: str, code: int = DONE) -> str:
        """Evaluates a model's folder to the end; returns what was printed."""
        before = self.log.stat().st_size if self.log.exists() else 0
        ended = self.start(FoundModel(folder.name, str(folder)), out, *words).wait(DEADLINE_S)
        printed = self.log.read_bytes()[before:].decode()
        assert ended == code, printed
        return printed

    def lines(self, out: str) -> list[PromptLine]:
        return read(self.directory / out)[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return save_model(folder / "old", seed=0), save_model(folder / "new", seed=1, stop=False)


@pytest.fixture
def evaluated(tmp_path: Path, models: tuple[Path, Path]) -> Evaluated:
    return Evaluated(tmp_path, models[0], "tests.workers.held_out_rewards:counts_tokens")


def test_a_killed_evaluation_goes_on_and_scores_each_prompt_once(
    evaluated: Evaluated, models: tuple[Path, Path]
) -> None:
    """… also after a kill in the middle of a line, and on SIGTERM, after which it says what to type."""
    evaluated.ask(QUESTIONS, gated=3)
    model = FoundModel("old", str(models[0]))
    file = evaluated.directory / "old.jsonl"
    first = evaluated.start(model, "old.jsonl")
    wait_until(lambda: file.exists() and b"\n" in file.read_bytes(), "the file's first line")
    wait_until(lambda: len(evaluated.lines("old.jsonl")) == len(QUESTIONS) - 1, "all but one prompt")
    first.kill()
    first.wait(DEADLINE_S)
    file.write_bytes(file.read_bytes()[:-9])
    kept = evaluated.lines("old.jsonl")
    assert len(kept) == len(QUESTIONS) - 2

    second = evaluated.start(model, "old.jsonl", "--typed=echo-queue eval run.toml old")
    wait_until(lambda: len(evaluated.lines("old.jsonl")) == len(QUESTIONS) - 1, "the half line's prompt")
    os.kill(second.pid, signal.SIGTERM)
    assert second.wait(DEADLINE_S) == STOPPED
    assert "5 of 6 prompts are in" in evaluated.log.read_text()
    assert "to go on: echo-queue eval run.toml old" in evaluated.log.read_text()

    evaluated.gate.touch()
    printed = evaluated.evaluate(models[0], "old.jsonl")
    lines = evaluated.lines("old.jsonl")
    assert sorted(line.index for line in lines) == list(range(len(QUESTIONS)))
    assert lines[: len(kept)] == kept
    assert "of 6 prompts, pass@1" in printed
    evaluated.evaluate(models[0], "whole.jsonl")
    by_index = {line.index: line for line in evaluated.lines("whole.jsonl")}
    assert by_index == {line.index: line for line in lines}, "a killed evaluation answers as an unbroken one"


def test_two_models_are_compared_prompt_by_prompt(evaluated: Evaluated, models: tuple[Path, Path]) -> None:
    """… of files that were answered to the same prompts. A file that is whole is not answered again."""
    evaluated.ask(QUESTIONS)
    evaluated.evaluate(models[0], "old.jsonl")
    against = f"--against={evaluated.directory / 'old.jsonl'}"
    evaluated.evaluate(models[1], "new.jsonl", "--samples=3", "--temperature=0", "--limit=5")
    before = (evaluated.directory / "new.jsonl").read_bytes()
    document = json.loads(
        evaluated.evaluate(models[1], "new.jsonl", "--samples=3", "--temperature=0", "--limit=5", against, "--json")
    )
    assert (evaluated.directory / "new.jsonl").read_bytes() == before
    Draft202012Validator(schemas() | {"required": ["eval"]}).validate({"eval": document})
    (held,) = document["sets"]
    old = {line.index: line.answered.rewards for line in evaluated.lines("old.jsonl") if line.index < 5}
    mean = sum(sum(one) / len(one) for one in old.values()) / 5
    assert (held["prompts"], held["samples"], held["mean"]) == (5, 3, 1.0), "no token ends the new model's answers"
    assert held["truncated"] == 1.0
    assert held["against"]["other"] == "old"
    assert held["against"]["prompts"] == 5
    assert held["against"]["difference"] == pytest.approx(1.0 - mean)
    changes = [abs(one["mean"] - one["other"]) for one in held["against"]["changed"]]
    assert changes == sorted(changes, reverse=True)

    for folder, words, what in (
        (models[1], ("--samples=1",), "has other answers: held's prompts is 5 there and 6 here"),
        (models[1], ("--limit=5",), "has other answers: held's samples is 3 there and 2 here"),
        (models[0], (), "has other answers: its model is new there and old here"),
    ):
        assert what in evaluated.evaluate(folder, "new.jsonl", *words, code=REFUSED)
    evaluated.ask(["another prompt"])
    assert "has no answers to these prompts of held" in evaluated.evaluate(
        models[1], "other.jsonl", against, code=REFUSED
    )


def test_a_prompt_whose_reward_raises_costs_no_other_one(tmp_path: Path, models: tuple[Path, Path]) -> None:
    evaluated = Evaluated(tmp_path, models[0], "tests.workers.held_out_rewards:refuses_seven")
    evaluated.ask(["one", "7", "two", "three", "x" * 40])
    printed = evaluated.evaluate(models[0], "old.jsonl")
    assert "1.000 [" in printed
    assert "of 4 prompts" in printed
    assert "1 failed: RuntimeError: seven is no number of ours" in printed
    assert printed.count("attempt 2: ") == 1, "it was tried again"
    assert [line.index for line in evaluated.lines("old.jsonl") if line.reason] == [1]


def test_an_interactive_environment_answers_the_model(tmp_path: Path, models: tuple[Path, Path]) -> None:
    environment = {"kind": "interactive", "function": "tests.workers.guessing:Answers", "max_turns": 3}
    evaluated = Evaluated(tmp_path, models[0], "", environment=environment, model={"max_new_tokens": 60})
    evaluated.ask(QUESTIONS, answer="no")
    evaluated.evaluate(models[0], "old.jsonl")
    lines = evaluated.lines("old.jsonl")
    assert {one.reward for line in lines for one in line.answers} == {0.5}
    assert any("no" in one.text for line in lines for one in line.answers)


def test_each_set_is_scored_by_its_own_environment(tmp_path: Path, models: tuple[Path, Path]) -> None:
    """… which is the run's own for the prompts of `--source`."""
    source = str(tmp_path / "held.jsonl")
    talk = {"kind": "interactive", "function": "tests.workers.guessing:Answers", "max_turns": 2}
    sets = [{"name": "held", "source": source}, {"name": "talk", "source": source, "environment": talk}]
    evaluated = Evaluated(tmp_path, models[1], "tests.workers.held_out_rewards:counts_tokens", evaluation=sets)
    evaluated.ask(QUESTIONS[:2], answer="no")
    evaluated.evaluate(models[1], "both.jsonl")
    rewards = {(line.set, line.index): line.answered.rewards for line in evaluated.lines("both.jsonl")}
    assert rewards == {("held", 0): (1.0,), ("held", 1): (1.0,), ("talk", 0): (0.5,), ("talk", 1): (0.5,)}
    evaluated.evaluate(models[1], "talk.jsonl", "--name=talk")
    assert {line.set for line in evaluated.lines("talk.jsonl")} == {"talk"}
    evaluated.evaluate(models[1], "source.jsonl", f"--source={source}")
    assert [line.answered.rewards for line in evaluated.lines("source.jsonl")] == [(1.0,), (1.0,)]


def test_adapters_of_a_version_are_merged_into_its_base_model_alone(
    evaluated: Evaluated, models: tuple[Path, Path], tmp_path: Path
) -> None:
    base, name = tensors_of(models[0]), "model.layers.0.self_attn.q_proj"
    a, b = torch.randn(2, base[f"{name}.weight"].shape[1]), torch.randn(base[f"{name}.weight"].shape[0], 2)
    infos = (TensorInfo(one, "float32", tuple(base[one].shape), digest_of(base[one])) for one in sorted(base))
    adapters = {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    file = tmp_path / "adapters.safetensors"
    save_file(adapters | {DESCRIPTION: LoraDescription(0.5, tuple(infos)).tensor()}, file)
    engine = engine_of(configured(load(evaluated.path), str(models[0]), Wishes()), [], file)
    try:
        merged = merged_weight(base[f"{name}.weight"], a, b, 0.5)
        assert torch.equal(engine.weight(f"{name}.weight").detach(), merged)
    finally:
        engine.close()
    with pytest.raises(ConfigError, match="is another one than that of this version's adapters"):
        engine_of(configured(load(evaluated.path), str(models[1]), Wishes()), [], file)


def test_a_version_of_a_run_is_fetched_once_and_answers_as_its_model(tmp_path: Path, models: tuple[Path, Path]) -> None:
    newer = save_model(tmp_path / "newer", seed=2)
    run = WorkerHarness(tmp_path, models[0])
    try:
        run.begin([], tensors_of(newer))
        assert find(load(run.path), "0").called == "1.0"
        with pytest.raises(EchoQueueError, match="no version of number 7 is stored"):
            find(load(run.path), "7")
    finally:
        run.end()
    version = find(load(run.path), "1.0")
    evaluated = Evaluated(tmp_path, models[0], "tests.workers.held_out_rewards:counts_tokens")
    evaluated.ask(QUESTIONS)
    assert evaluated.start(version, "version.jsonl").wait(DEADLINE_S) == DONE, evaluated.log.read_text()
    evaluated.evaluate(newer, "newer.jsonl")
    answers = [{line.index: line for line in evaluated.lines(out)} for out in ("version.jsonl", "newer.jsonl")]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("model", "words", "what"),
    [
        ("final", (), "the run has no final model"),
        ("./missing/model", (), "there is no folder ./missing/model"),
        (".", (), "there is no model in ."),
        ("base", ("--samples", "0"), "--samples"),
    ],
)
def test_a_model_or_an_option_that_cannot_be_is_refused_before_anything_is_opened(
    evaluated: Evaluated, model: str, words: tuple[str, ...], what: str
) -> None:
    done = CliRunner().invoke(commands.app, ["eval", str(evaluated.path), model, *words])
    told = str(done.exception) if isinstance(done.exception, EchoQueueError) else done.output
    assert what in told
    assert done.exit_code != DONE


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--name=other",), "--name: no evaluation is called other"),
        (("--name=other", "--source=held.jsonl"), "--name: no evaluation and no component is called other"),
        (("--source=nothing.jsonl",), "nothing.jsonl: cannot be read"),
        (("--against=nothing.jsonl",), "nothing.jsonl: cannot be read"),
        ((), "held.jsonl"),
    ],
)
def test_a_set_that_cannot_be_answered_is_refused(
    evaluated: Evaluated, models: tuple[Path, Path], words: tuple[str, ...], what: str
) -> None:
    if words:
        evaluated.ask(QUESTIONS)
    else:
        evaluated.held.write_text("no JSON\n")
    assert what in evaluated.evaluate(models[0], "old.jsonl", *words, code=REFUSED)
    assert not (evaluated.directory / "old.jsonl").exists()


MIXTURE: list[dict[str, Any]] = [
    {"name": "sums", "environment": {"kind": "math"}, "max_new_tokens": 5, "map": {"system": "Add."}},
    {"name": "words", "environment": {"kind": "function", "function": "rewards:words"}},
]
HELD = [{"name": "held", "source": "held.jsonl", "samples": 2, "environment": {"kind": "reasoning-gym"}}]


def mixed(directory: Path, base: Path) -> Config:
    return load(Evaluated(directory, base, "", mixture=MIXTURE, evaluation=HELD, environment=None).path)


@pytest.mark.parametrize(
    ("name", "kind", "limit", "samples", "system"),
    [("sums", "math", 5, 1, "Add."), ("words", "function", 12, 1, ""), ("held", "reasoning-gym", 12, 2, "")],
)
def test_prompts_that_are_named_are_scored_as_those_of_an_evaluation_or_a_component(
    tmp_path: Path, models: tuple[Path, Path], *, name: str, kind: str, limit: int, samples: int, system: str
) -> None:
    config = mixed(tmp_path, models[0])
    (one,) = configured(config, "model", Wishes(name=name, source="new.jsonl")).evaluation
    assert one.environment is not None
    assert (one.environment.kind, one.limit(config.model), one.samples) == (kind, limit, samples)
    assert (one.name, one.source, one.map.system) == ("source", "new.jsonl", system)


def test_in_a_mixture_the_user_says_as_which_component_prompts_are_scored(
    tmp_path: Path, models: tuple[Path, Path]
) -> None:
    config = mixed(tmp_path, models[0])
    with pytest.raises(ConfigError, match=r"say with --name as which .* there is held, sums, words"):
        configured(config, "model", Wishes(source="new.jsonl"))
    bare = config.model_copy(update={"mixture": (config.mixture[0].model_copy(update={"environment": None}),)})
    (one,) = configured(bare, "model", Wishes(source="new.jsonl")).evaluation
    assert one.environment == config.environment


def test_a_file_of_another_kind_is_left_as_it_is(evaluated: Evaluated, models: tuple[Path, Path]) -> None:
    evaluated.ask(QUESTIONS)
    notes = evaluated.directory / "notes.txt"
    notes.write_text("my notes")
    assert "is no file of answers" in evaluated.evaluate(models[0], "notes.txt", code=REFUSED)
    assert notes.read_text() == "my notes"
