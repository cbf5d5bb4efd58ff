import math

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo_queue.config import Learner
from echo_queue.errors import EchoQueueError
from echo_queue.records import Group, Sample, Span
from learner.model import device
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.model.scorer import Scorer
from learner.model.sharding import local
from learner.update import learn, learning_rate
from tests.learner.states import restore, state_of
from tests.learner.synthetic import group, tiny_model

SETTINGS = Learner(lr=3e-3)
TEACHING = Learner(lr=6e-3)
SAMPLES = 16


def make_policy(seed: int = 0, dtype: torch.dtype = torch.float32, **settings: float) -> Policy:
    return Policy(for_scorer(tiny_model(seed)), SETTINGS.model_copy(update=settings), dtype)


def rollouts(model: PreTrainedModel, draw: torch.Generator, version: int) -> list[Group]:
    """Samples two tokens for each of eight prompts as an engine would, all in one batch; the reward is for naming the
    prompt's first token twice."""
    prompts = torch.tensor([[first, 7] for first in range(8)])
    text, logprobs = prompts.repeat_interleave(SAMPLES, 0), []
    with torch.no_grad():
        for _ in range(2):
            scores = torch.log_softmax(model(text).logits[:, -1], -1)
            chosen = torch.multinomial(scores.exp(), 1, generator=draw)
            logprobs.append(scores.gather(-1, chosen))
            text = torch.cat([text, chosen], 1)
    tokens, behaviour = text[:, 2:].int().split(SAMPLES), torch.cat(logprobs, 1).split(SAMPLES)
    return [group_of(*one, version) for one in zip(prompts, tokens, behaviour, strict=True)]


def group_of(prompt: Tensor, tokens: Tensor, logprobs: Tensor, version: int) -> Group:
    rewards = (tokens == prompt[0]).float().mean(1).tolist()
    made = tuple(
        Sample(drawn.numpy(), behaviour.numpy(), (Span(0, version),), reward, "stop")
        for drawn, behaviour, reward in zip(tokens, logprobs, rewards, strict=True)
    )
    return Group(f"set/0/{version}", "set", 0, version, 1, "worker", 1, prompt.int().numpy(), made)


def train(policy: Policy, updates: int, age: int) -> list[float]:
    """Mean reward of each update's batch, generated `age` updates before it is trained."""
    draw, rewards = torch.Generator().manual_seed(1), []
    waiting: list[list[Group]] = []
    engine = tiny_model()
    for version in range(updates + age):
        engine.load_state_dict({name: weight.float() for name, weight in policy.snapshot().items()}, strict=False)
        waiting.append(rollouts(engine, draw, version))
        if version < age:
            continue
        batch = waiting.pop(0)
        rewards.append(float(np.mean([sample.reward for item in batch for sample in item.samples])))
        learn(policy, batch, version - age + 1, TEACHING, 1.0)
    return rewards


@pytest.mark.slow
def test_a_tiny_model_learns_a_trivial_task_in_a_few_updates() -> None:
    rewards = train(make_policy(), updates=40, age=0)
    assert np.mean(rewards[:3]) < 0.25
    assert np.mean(rewards[-3:]) > 0.8


@pytest.mark.slow
def test_data_four_updates_old_still_teaches() -> None:
    rewards = train(make_policy(), updates=60, age=4)
    assert np.mean(rewards[-3:]) > 0.8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_policy_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    first = make_policy(dtype=dtype)
    learn(first, [group(0)], 1, SETTINGS, 1.0)
    kept = state_of(first)
    expected_draw = torch.rand(3)
    learn(first, [group(1)], 2, SETTINGS, 1.0)

    second = make_policy(seed=5, dtype=dtype)
    restore(second, kept)
    assert torch.equal(torch.rand(3), expected_draw)
    learn(second, [group(1)], 2, SETTINGS, 1.0)
    for name, tensor in state_of(first).items():
        if name != "rng":
            assert torch.equal(state_of(second)[name], tensor), name


def test_a_gradient_that_is_put_in_place_with_the_last_micro_batch_is_the_same_to_the_bit() -> None:
    settings, groups = SETTINGS.model_copy(update={"micro_tokens": 24}), [group(number) for number in range(4)]
    at_once, at_last = make_policy(dtype=torch.bfloat16), make_policy(dtype=torch.bfloat16)
    at_once.expect_backward = lambda *, last: None  # type: ignore[method-assign]  # as FSDP does it of itself
    missing = []
    backward = at_last.expect_backward

    def watched(*, last: bool) -> None:
        missing.append(all(master.grad is None for master in at_last.masters.values()))
        backward(last=last)

    at_last.expect_backward = watched  # type: ignore[method-assign]
    for policy in (at_once, at_last):
        for number in (1, 2):
            learn(policy, groups, number, settings, 1.0)
    assert len(missing) > 4 and all(missing)
    for name, tensor in state_of(at_once).items():
        assert torch.equal(state_of(at_last)[name], tensor), name


@pytest.mark.parametrize("correction", [{}, {"preset": "m2po"}])
def test_deterministic_algorithms_leave_every_bit_of_an_update_on_a_cpu(
    correction: dict[str, str], usual_algorithms: None
) -> None:
    settings, states = Learner.model_validate({"lr": 3e-3, "correction": correction}), []
    for deterministic in (False, True):
        if deterministic:
            device.compute_deterministically()
        policy = make_policy()
        learn(policy, [group(0), group(1)], 1, settings, 1.0)
        states.append(state_of(policy))
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items() if name != "rng")


def test_bfloat16_publishes_the_rounded_masters_and_keeps_steps_too_small_to_round() -> None:
    policy = make_policy(dtype=torch.bfloat16)
    before = {name: local(master.detach()).clone() for name, master in policy.masters.items()}
    weights = {name: weight.clone() for name, weight in policy.snapshot().items()}
    learn(policy, [group(0)], 1, Learner(lr=1e-6), 1.0)
    assert {weight.dtype for weight in policy.snapshot().values()} == {torch.bfloat16}
    name = "model.layers.0.mlp.up_proj.weight"
    assert (local(policy.masters[name]) != before[name]).float().mean() > 0.9
    assert (policy.snapshot()[name] != weights[name]).float().mean() < 0.1
    for key, weight in policy.snapshot().items():
        assert torch.equal(weight, local(policy.masters[key]).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_size_of_micro_batches_does_not_change_the_update(dtype: torch.dtype) -> None:
    results = []
    for micro_tokens in (1, 25, 10_000):
        policy = make_policy(dtype=dtype)
        learned = learn(
            policy,
            [group(0), group(1), group(2)],
            1,
            SETTINGS.model_copy(update={"micro_tokens": micro_tokens}),
            1.0,
        )
        results.append(learned)
    norms = [learned.grad_norm for learned in results]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4 if dtype == torch.float32 else 0.05)
    assert [learned.sums.tokens for learned in results] == [39] * 3


def test_equal_rewards_leave_weights_and_optimizer_alone() -> None:
    policy = make_policy()
    before = state_of(policy)
    learned = learn(policy, [group(0, rewards=(1, 1, 1))], 1, SETTINGS, 1.0)
    assert (learned.zero_variance_groups, learned.grad_norm, learned.sums.tokens) == (1, 0.0, 0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(policy).items())


def test_norms_and_biases_do_not_decay() -> None:
    policy = make_policy(weight_decay=0.5)
    decays = {p.ndim: part["weight_decay"] for part in policy.optimizer.param_groups for p in part["params"]}
    assert decays == {2: 0.5, 1: 0.0}


def test_the_learning_rate_warms_up_and_stays() -> None:
    settings = Learner(lr=1.0, warmup_updates=4)
    assert [learning_rate(settings, number) for number in range(1, 7)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert learning_rate(Learner(lr=1.0), 1) == 1.0


def test_the_learning_rate_falls_along_a_line_to_its_share_and_stays() -> None:
    settings = Learner(lr=2.0, warmup_updates=2, schedule="linear", schedule_updates=6, lr_end_share=0.2)
    expected = [1.0, 2.0, 1.6, 1.2, 0.8, 0.4, 0.4, 0.4]
    assert [learning_rate(settings, number) for number in range(1, 9)] == pytest.approx(expected)


def test_the_learning_rate_falls_along_half_a_cosine_wave() -> None:
    settings = Learner(lr=1.0, schedule="cosine", max_updates=4, lr_end_share=0.0)
    half = math.sqrt(0.5) / 2
    expected = [0.5 + half, 0.5, 0.5 - half, 0.0, 0.0]
    assert [learning_rate(settings, number) for number in range(1, 6)] == pytest.approx(expected)


def test_a_schedule_may_end_before_the_run_does() -> None:
    settings = Learner(lr=1.0, schedule="linear", schedule_updates=2, max_updates=100, lr_end_share=0.5)
    assert [learning_rate(settings, number) for number in (1, 2, 3, 100)] == pytest.approx([0.75, 0.5, 0.5, 0.5])


def test_the_kl_term_holds_the_policy_near_its_reference() -> None:
    drift = []
    for weight in (0.0, 5.0):
        policy, reference = make_policy(), Scorer(for_scorer(tiny_model()).requires_grad_(False))
        settings = SETTINGS.model_copy(update={"kl": weight})
        for number in range(1, 12):
            learned = learn(policy, [group(0)], number, settings, 1.0, reference=reference)
        drift.append(learned.sums.mean(learned.sums.kl_reference))
    assert drift[1] < drift[0] / 2


def test_a_gradient_that_is_not_finite_stops_the_learner_and_changes_nothing() -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.masters["model.norm.weight"][0] = float("nan")
    before = policy.masters["model.layers.0.mlp.up_proj.weight"].detach().clone()
    with pytest.raises(EchoQueueError, match="update 3 is not finite"):
        learn(policy, [group(0)], 3, SETTINGS, 1.0)
    assert torch.equal(policy.masters["model.layers.0.mlp.up_proj.weight"], before)
