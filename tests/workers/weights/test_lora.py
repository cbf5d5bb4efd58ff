"""From a learner that trains adapters to a worker's engine: both compute with the same weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from echo_queue.config import Config, Learner
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ConfigError
from echo_queue.records import Sample, Span, Version
from echo_queue.weights import Manifest, find_path
from echo_queue.weights.lora import DESCRIPTION, adapted, factors, merged_weight
from learner.batch.micro_batches import micro_batches
from learner.batch.prepare import prepare
from learner.model.loading import load_policy
from learner.model.lora.frozen_base import ADAPTER_FOLDER
from learner.model.policy import Policy
from learner.model.scorer import Score
from learner.ranks.team import Team
from learner.update import learn
from tests.engines.asking import ask, prompt, run
from tests.learner.states import restore, state_of
from tests.learner.synthetic import group
from tests.workers.publications import Publications
from tests.workers.small import save_model
from workers.engines.transformers.engine import TransformersEngine
from workers.weights.lora import LoraStage, OtherBase
from workers.weights.swap import WeightSwap

torch.set_num_threads(1)
on_rclone = pytest.mark.parametrize("s3_server", ["rclone"], indirect=True)
GROUPS = [group(number, 5, (4, 9, 7), (1, 0, number % 2)) for number in range(3)]


def config(folder: Path, **lora: object) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "test", "dir": folder / "run"},
            "model": {"base": str(folder), "dtype": "bfloat16", "lora": {"rank": 4} | lora},
            "learner": {"lr": 1e-2},
        }
    )


def loaded(settings: Config) -> Policy:
    return load_policy(settings, torch.device("cpu"), Team.alone())


@pytest.fixture
def policy(folder: Path) -> Policy:
    """A policy after two updates."""
    policy = loaded(config(folder))
    for number in (1, 2):
        learn(policy, GROUPS, number, config(folder).learner, 1.0)
    return policy


class Worker:
    """A worker's engine on the model in `folder`, and its stage; it fetches what `learner` published."""

    def __init__(self, folder: Path, learner: Publications) -> None:
        self.engine = TransformersEngine(str(folder), Version(0, 0), "bfloat16", 64)
        self.stage, self.learner = LoraStage(self.engine.weight), learner

    def serve(self, number: int) -> Manifest:
        manifest = self.learner.manifest(self.learner.publish(number))
        path = find_path(self.learner.store, self.stage.have, manifest, self.learner.verifier)
        self.stage.apply(path, manifest, self.learner.parts(path), None)
        WeightSwap(self.engine).swap(self.stage.served_manifest(manifest), self.stage.served)
        return manifest


@pytest.fixture
def learner(object_store: ObjectStore, policy: Policy) -> Publications:
    return Publications(object_store, policy.snapshot(), "bfloat16")


@pytest.mark.slow
@on_rclone
def test_learner_and_worker_compute_with_the_same_weights(
    folder: Path, policy: Policy, learner: Publications, tmp_path: Path
) -> None:
    """From the first version over a delta to the next, in the engine and in the model that is written in the end."""
    worker = Worker(folder, learner)
    rounding = apart(worker.engine, policy.score_base, policy)
    for number in (2, 3):
        manifest = worker.serve(number)
        assert {info.name for info in manifest.tensors} == {*policy.masters, DESCRIPTION}, "the adapters alone"
        found = apart(worker.engine, policy.score, policy)
        assert found < 1.5 * rounding, "no further apart than with the base model, where both have the same weights"
        learn(policy, GROUPS, 3, config(folder).learner, 1.0)
        learner.tensors = policy.snapshot()
    assert manifest.route.base is not None, "a delta"
    worker.serve(4)

    written = tmp_path / "model"
    policy.save_pretrained(written, policy.snapshot())
    merged = AutoModelForCausalLM.from_pretrained(written)
    for name, tensor in merged.state_dict().items():
        assert torch.equal(tensor, worker.engine.weight(name)), name
    for name in adapted(policy.masters):
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).get_parameter(name)
        a, b = factors(policy.masters, name)
        assert torch.equal(merged_weight(base, a, b, 8.0), worker.engine.weight(name)), name
        assert not torch.equal(base, worker.engine.weight(name)), name


def apart(engine: TransformersEngine, score: Score, policy: Policy) -> float:
    """The mean distance of log-probabilities, of tokens that the engine has drawn, from those by which they are scored.

    Both compute in bfloat16, and add up in different orders.
    """
    questions = ask("group", prompt(7, seed=1), 30, samples=16)
    samples = tuple(
        Sample(one.tokens, one.logprobs, (Span(0, 0),), float(number % 2), "length")
        for number, one in enumerate(run(engine, questions).values())
    )
    drawn = replace(group(0), prompt=questions[0].prompt, samples=samples)
    (batch,) = micro_batches(prepare([drawn], Learner()), 1 << 20, policy.packing)
    with torch.no_grad():
        return float((score(batch, 1.0).logprobs - batch.behaviour).abs().mean())


@pytest.mark.slow
def test_peft_loads_the_adapters_onto_the_base_model(folder: Path, policy: Policy, tmp_path: Path) -> None:
    from peft import PeftModel

    policy.save_pretrained(tmp_path, policy.snapshot())
    wide = {"dtype": torch.float32}
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder, **wide), tmp_path / ADAPTER_FOLDER)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, **wide)
    tokens = torch.arange(3, 40).unsqueeze(0)
    base = AutoModelForCausalLM.from_pretrained(folder, **wide)
    with torch.no_grad():
        by_peft, by_merged, by_base = (model(tokens).logits for model in (peft, merged, base))
    assert (by_peft - by_merged).norm() < 0.05 * (by_merged - by_base).norm()


@on_rclone
@pytest.mark.slow
def test_a_worker_with_another_base_model_is_refused(learner: Publications, tmp_path: Path) -> None:
    other = Worker(save_model(tmp_path / "other", seed=1), learner)
    with pytest.raises(OtherBase, match=r"adapters of another base model than this worker's: model\."):
        other.serve(2)


@pytest.mark.parametrize("names", [["c_attn"], ["q_proj", "c_attn"], ["mlp"], ["lm_head"]])
def test_adapters_need_linear_layers_of_the_decoder(folder: Path, names: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"model\.lora\.target_modules"):
        loaded(config(folder, target_modules=names))


def test_adapters_of_another_base_or_scaling_or_rank_are_not_resumed(
    folder: Path, policy: Policy, tmp_path: Path
) -> None:
    state: dict[str, Tensor] = state_of(policy)
    again = loaded(config(folder))
    restore(again, state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in state_of(again).items())
    other = save_model(tmp_path / "other", seed=1)
    for settings, what in (
        (config(other), r"another base model: .* differs"),
        (config(folder, alpha=16), "alpha / rank = 8, not 4"),
        (config(folder, rank=2, alpha=16), "adapters of another rank"),
        (config(folder, rank=0), "holds LoRA adapters"),
    ):
        with pytest.raises(ConfigError, match=what):
            restore(loaded(settings), state)
