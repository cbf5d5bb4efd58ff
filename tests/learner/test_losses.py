import pytest
import torch

from learner.losses.advantages import group_advantages, length_penalty
from learner.losses.corrections import clip
from learner.losses.kl import kl_k3


def test_advantages_of_all_kinds_by_hand() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert group_advantages(rewards, "mean").tolist() == [0.75, -0.25, -0.25, -0.25]
    assert group_advantages(rewards, "max").tolist() == [3.0, -1.0, -1.0, -1.0]
    assert group_advantages(rewards, "std").tolist() == pytest.approx([1.49970, -0.49990, -0.49990, -0.49990], abs=1e-5)


def test_the_surrogate_by_hand_inside_above_and_below_the_bounds() -> None:
    ratio = torch.tensor([1.1, 1.5, 1.5, 0.5, 0.5])
    advantages = torch.tensor([2.0, 2.0, -2.0, 2.0, -2.0])
    loss, cut = clip(ratio.log(), advantages, 0.2, 0.28)
    assert loss.tolist() == pytest.approx([-2.2, -2.56, 3.0, -1.0, 1.6], rel=1e-5)
    assert cut.tolist() == [False, True, False, False, True]


def test_the_gradient_is_that_of_the_ratio_inside_and_nothing_where_it_is_cut() -> None:
    behaviour = torch.tensor([-1.0, -1.0, -1.0])
    logprobs = (behaviour + torch.tensor([1.1, 1.5, 0.5]).log()).requires_grad_()
    advantages = torch.tensor([2.0, 2.0, -2.0])
    loss, cut = clip(logprobs - behaviour, advantages, 0.2, 0.28)
    loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-2.2, 0.0, 0.0], rel=1e-5)
    assert cut.tolist() == [False, True, True]


def test_on_policy_the_gradient_is_that_of_plain_policy_gradient() -> None:
    logprobs = torch.tensor([-0.3, -2.0], requires_grad=True)
    advantages = torch.tensor([0.5, -1.5])
    clip(logprobs - logprobs.detach(), advantages, 0.2, 0.2).losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx((-advantages).tolist())


def test_k3_is_zero_for_equal_policies_positive_otherwise_and_unbiased() -> None:
    policy = torch.log_softmax(torch.tensor([0.3, -1.0, 2.0]), -1)
    reference = torch.log_softmax(torch.tensor([1.0, 0.0, 0.5]), -1)
    assert kl_k3(policy, policy).tolist() == [0.0, 0.0, 0.0]
    assert (kl_k3(policy, reference) > 0).all()
    expected = (policy.exp() * (policy - reference)).sum()
    assert (policy.exp() * kl_k3(policy, reference)).sum().item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_sample_loses_reward_in_proportion_between_the_two_lengths() -> None:
    lengths = torch.tensor([1, 8, 10, 12, 13])
    assert length_penalty(lengths, 8, 12).tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]
