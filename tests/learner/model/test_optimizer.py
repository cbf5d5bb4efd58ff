"""The optimizer whose moments lie in host memory takes the same steps, and has the same checkpoints."""

import pytest
import torch
from torch import Tensor

from echo_queue.config import Learner
from learner.model import optimizer
from learner.model.loading import prepare
from learner.model.optimizer import MOMENTS, HostOptimizer, Optimizer
from learner.model.policy import Policy
from learner.update import learn
from tests.learner.states import restore, state_of
from tests.learner.synthetic import group, tiny_model

DEVICE, HOST = Learner(lr=3e-3, weight_decay=0.1), Learner(lr=3e-3, weight_decay=0.1, offload=True)


def policy(settings: Learner, dtype: torch.dtype = torch.float32) -> Policy:
    return Policy(prepare(tiny_model()), settings, dtype)


def trained(one: Policy, settings: Learner, first: int = 0, updates: int = 3) -> dict[str, Tensor]:
    for number in range(first, first + updates):
        learn(one, [group(2 * number), group(2 * number + 1)], number + 1, settings, 1.0)
    return state_of(one)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("at_once", [64, 1 << 26])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_in_host_memory_change_nothing(
    dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer, "AT_ONCE", at_once)
    found = trained(policy(HOST, dtype), HOST)
    assert_equal(found, trained(policy(DEVICE, dtype), DEVICE))
    steps = {float(tensor) for name, tensor in found.items() if name.startswith("step/")}
    assert steps == {3.0}


@pytest.mark.parametrize(("before", "after"), [(DEVICE, HOST), (HOST, DEVICE), (HOST, HOST)])
def test_a_checkpoint_of_either_is_continued_by_either_bit_for_bit(before: Learner, after: Learner) -> None:
    first = trained(policy(before), before)
    other = policy(after)
    trained(other, after, first=7, updates=1)
    restore(other, first)
    assert_equal(trained(other, after, first=3), trained(policy(DEVICE), DEVICE, updates=6))


def test_a_checkpoint_from_before_the_first_step_leaves_no_moments() -> None:
    for settings in (DEVICE, HOST):
        begun, stepped = policy(settings), policy(settings)
        trained(stepped, settings)
        restore(stepped, state_of(begun))
        assert_equal(trained(stepped, settings), trained(begun, settings))


def test_moments_lie_one_after_another_in_slabs_and_not_beside_the_parameter() -> None:
    one = policy(HOST)
    trained(one, HOST, updates=1)
    moments = [tensor for state in one.optimizer.state.values() for name, tensor in state.items() if name != "step"]
    assert len({tensor.untyped_storage().data_ptr() for tensor in moments}) < len(moments) / 2


def test_a_parameter_without_a_gradient_stays_and_has_no_moments() -> None:
    for kind in (Optimizer, HostOptimizer):
        one, other = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))
        stepper = kind([one, other], DEVICE)
        one.grad = torch.ones(3, 2)
        stepper.step()
        assert set(stepper.state[one]) == {*MOMENTS} and not stepper.state[other]
        assert torch.equal(other, torch.ones(2)) and not torch.equal(one, torch.ones(3, 2))


def test_it_calls_no_closure() -> None:
    with pytest.raises(NotImplementedError):
        HostOptimizer([torch.nn.Parameter(torch.ones(2))], HOST).step(lambda: 0.0)
