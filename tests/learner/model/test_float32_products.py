"""bfloat16 weights on a processor that has no arithmetic for them: the same numbers, and no product in bfloat16."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from echo_queue.config import Learner, Lora
from learner.model import float32_products
from learner.model.loading import prepare
from learner.model.lora.adapters import Adapters
from learner.model.policy import Policy
from learner.model.sharding import local
from learner.update import learn
from tests.learner.model.families import family_model
from tests.learner.synthetic import group

CHEAP = {"aten.mm.default", "aten.bmm.default", "aten.addmm.default"}


class Computed(TorchDispatchMode):
    """Notes the name of every operation that is computed, and those of them that multiply matrices of bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.in_bfloat16: set[str] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(operation)
        self.names.add(name)
        of_matrices = name in CHEAP or "attention" in name or "grouped_mm" in name or "bmm" in name
        if of_matrices and any(torch.is_tensor(one) and one.dtype == torch.bfloat16 for one in args):
            self.in_bfloat16.add(name)
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor without arithmetic of bfloat16."""
    monkeypatch.setattr(float32_products, "cpu_has_bfloat16", lambda: False)
    yield


def trained(family: str, *, rank: int = 0, **settings: Any) -> tuple[Policy, Computed]:
    """Returns a policy after an update in bfloat16, and what was computed for it."""
    learner = Learner.model_validate({"lr": 1e-3} | settings)
    model = prepare(family_model(family, dtype=torch.bfloat16 if rank else torch.float32))
    adapters = Adapters(model, Lora(rank=rank)) if rank else None
    policy = Policy(model, learner, torch.bfloat16, adapters=adapters)
    if adapters:
        adapters.initialise(0)
    groups = [group(number, rewards=(1.0, 0.0, 0.5)) for number in range(2)]
    with Computed() as computed:
        learn(policy, groups, 1, learner, 1.0)
    return policy, computed


@pytest.mark.slow
@pytest.mark.usefixtures("slow_bfloat16")
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3", {}),
        ("qwen3", {"activation_checkpointing": "selective"}),
        ("qwen3", {"activation_checkpointing": "full"}),
        ("gemma2", {}),
        ("gpt_oss", {}),
        ("qwen3_moe", {}),
        ("llama", {"rank": 2}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_no_product_is_computed_in_a_type_that_the_processor_lacks(family: str, settings: dict[str, Any]) -> None:
    _, computed = trained(family, **settings)
    assert computed.names & CHEAP
    assert computed.in_bfloat16 == set()


@pytest.mark.usefixtures("slow_bfloat16")
def test_what_is_published_is_what_was_computed_with() -> None:
    policy, _ = trained("qwen3")
    published = policy.snapshot()
    assert {one.dtype for one in published.values()} == {torch.bfloat16}
    assert all(torch.equal(published[name], local(one).to(torch.bfloat16)) for name, one in policy.masters.items())


def test_a_processor_that_has_bfloat16_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float32_products, "cpu_has_bfloat16", lambda: True)
    policy, computed = trained("qwen3")
    assert "aten.mm.default" in computed.in_bfloat16
    monkeypatch.setattr(float32_products, "cpu_has_bfloat16", lambda: False)
    other, _ = trained("qwen3")
    for name, one in policy.masters.items():
        assert torch.allclose(local(one), local(other.masters[name]), atol=3e-3), name


@pytest.mark.usefixtures("slow_bfloat16")
def test_a_product_is_the_one_of_float32_rounded_once() -> None:
    left, right = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((5, 7), (7, 3)))
    with float32_products.float32_products(torch.bfloat16, torch.device("cpu")):
        found = left @ right
    assert torch.equal(found, (left.float() @ right.float()).to(torch.bfloat16))
