"""What is compiled gives the same numbers, and is compiled once for all lengths.

The backend runs the graphs that `torch.compile` traces without its code generator, which needs a C++ compiler on a CPU.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import PreTrainedModel

from echo_queue.config import Config, Learner
from echo_queue.errors import ConfigError
from learner.batch.micro_batches import MicroBatch, micro_batches
from learner.batch.prepare import prepare
from learner.model import policy as policies
from learner.model.activations import Kept
from learner.model.attention.rectangles import Rectangles
from learner.model.attention.varlen import VariableLength
from learner.model.compilation import compile_model
from learner.model.elementwise import compile_elementwise
from learner.model.loading import load_policy
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.model.scorer import Scorer
from learner.model.sharding import local
from learner.ranks.team import Team
from tests.learner.model.families import FAMILIES, family_model
from tests.learner.model.flash_stand_in import flash_attention_on_the_cpu
from tests.learner.synthetic import group, tiny_model

CPU = torch.device("cpu")
ELEMENTWISE = Learner(compile="elementwise")
OFTEN = ["qwen3", "gemma3", "phi3", "gpt_oss"]
"""Between them each kind of part: norms of two kinds, rotations of two kinds, three kinds of gated products."""
PROOF = pytest.mark.proof(kind="compiled families", share=0.2)
SELDOM = [pytest.param(name, marks=PROOF) for name in FAMILIES if name not in OFTEN]
PARTS = pytest.mark.proof(kind="compiled parts", share=0.25)
NORMS = {"qwen3": 4, "qwen3_moe": 4, "gemma2": 4, "gemma3_text": 6, "olmo2": 4, "olmo3": 4}
"""The norms of a layer, where they are not two."""


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounterWithBackend]:
    """Counts the graphs that are compiled."""
    torch._dynamo.reset()
    counting = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    yield counting
    torch._dynamo.reset()


def batches(packing: type[Rectangles | VariableLength] = Rectangles, count: int = 5) -> list[MicroBatch]:
    """Returns micro-batches of other numbers of prompts, samples and tokens each."""
    groups = [[group(index, 3 + 2 * n, (4 + n, 6, 3 + index)) for index in range(1 + n % 3)] for n in range(count)]
    return [batch for some in groups for batch in micro_batches(prepare(some, Learner()), 10_000, packing)]


def trained(policy: Policy, some: list[MicroBatch]) -> dict[str, Tensor]:
    """Returns the log-probabilities of all micro-batches, and the sum of their gradients."""
    found = []
    for batch in some:
        found.append(policy.score(batch, 0.8).logprobs)
        found[-1].sum().backward()
    gradients = {name: local(master.grad) for name, master in policy.masters.items() if master.grad is not None}
    return {"logprobs": torch.cat(found).detach(), **gradients}


def check_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4, msg=name)


def check_compiled_once(
    policy: Policy, some: list[MicroBatch], expected: dict[str, Tensor], counter: CompileCounterWithBackend
) -> None:
    """Checks that a compiled policy finds what is expected, and that no micro-batch but the first compiles anything."""
    before = trained(policy, some[:1])
    graphs = counter.frame_count
    found = trained(policy, some[1:])
    found["logprobs"] = torch.cat([before["logprobs"], found["logprobs"]])
    check_same(found, expected)
    assert counter.frame_count == graphs


@pytest.mark.parametrize("family", FAMILIES)
def test_the_norms_rotation_and_gated_product_of_each_layer_are_found(family: str) -> None:
    model = family_model(family)
    norms = NORMS.get(model.config.model_type, 2)
    assert compile_elementwise(model) == model.config.num_hidden_layers * (norms + 2) + 1


@pytest.mark.parametrize("family", [*OFTEN, *SELDOM])
def test_elementwise_parts_of_each_family_give_the_same_numbers_and_are_compiled_once_for_all_lengths(
    family: str, counter: CompileCounterWithBackend
) -> None:
    some = batches()
    expected = trained(Policy(for_scorer(family_model(family)), Learner()), some)
    kept = Learner(compile="elementwise", activation_checkpointing="selective")
    check_compiled_once(Policy(for_scorer(family_model(family)), kept), some, expected, counter)
    assert counter.frame_count >= 4  # a norm, the rotation, the gated product, and the trial of the compiler


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype", "what"),
    [
        ("none", torch.bfloat16, "elementwise"),
        ("full", torch.bfloat16, "elementwise"),
        ("selective", torch.float32, "layers"),
        *(
            pytest.param(*other, marks=PARTS)
            for other in (
                ("selective", torch.bfloat16, "elementwise"),
                ("full", torch.float32, "elementwise"),
                ("none", torch.float32, "layers"),
                ("full", torch.float32, "layers"),
            )
        ),
    ],
)
@pytest.mark.usefixtures("counter")
def test_compiled_parts_work_with_activation_checkpointing_and_sharding(
    kind: Kept, dtype: torch.dtype, what: Any
) -> None:
    """A policy in bfloat16 is sharded, over one rank."""
    some = batches()[:1]
    expected = trained(Policy(for_scorer(tiny_model()), Learner(activation_checkpointing=kind), dtype), some)
    settings = Learner(compile=what, activation_checkpointing=kind)
    check_same(trained(Policy(for_scorer(tiny_model()), settings, dtype), some), expected)


def test_adapters_train_with_elementwise_parts_compiled(tmp_path: Path, counter: CompileCounterWithBackend) -> None:
    """Adapters lie within the modules whose products are compiled, and in gate and up themselves."""
    tiny_model().save_pretrained(tmp_path)

    def adapted(what: str) -> dict[str, Tensor]:
        values = {
            "run": {"name": "t", "dir": tmp_path}, "model": {"base": str(tmp_path), "lora": {"rank": 3}},
            "learner": {"compile": what},
        }  # fmt: skip
        return trained(load_policy(Config.model_validate(values), CPU, Team.alone()), batches()[:2])

    expected = adapted("none")
    assert counter.frame_count == 0 and len(expected) > 1
    check_same(adapted("elementwise"), expected)
    assert counter.frame_count > 0


@pytest.mark.slow
def test_passes_without_a_gradient_are_compiled_once_more_and_never_again(counter: CompileCounterWithBackend) -> None:
    first, *rest = batches()
    policy = Policy(for_scorer(tiny_model()), ELEMENTWISE)
    trained(policy, [first])
    with torch.no_grad():
        policy.score(first, 1.0)
    graphs = counter.frame_count
    for batch in rest:
        with torch.no_grad():
            expected = Scorer(for_scorer(tiny_model()))(batch, 1.0)
            torch.testing.assert_close(policy.score(batch, 1.0).logprobs, expected.logprobs)
        trained(policy, [batch])
    assert counter.frame_count == graphs


def test_other_models_of_the_family_compute_as_they_did(counter: CompileCounterWithBackend) -> None:
    def scored(model: PreTrainedModel) -> Tensor:
        found: Tensor = Scorer(model)(batches()[0], 1.0).logprobs
        return found

    other = for_scorer(tiny_model())
    expected = scored(other)
    compile_model(Scorer(for_scorer(tiny_model())), ELEMENTWISE, CPU)
    graphs = counter.frame_count
    assert torch.equal(scored(other), expected)
    assert torch.equal(scored(for_scorer(tiny_model())), expected)
    assert counter.frame_count == graphs


def test_selective_checkpoints_keep_no_more_with_elementwise_parts_compiled(counter: CompileCounterWithBackend) -> None:
    """Products and attention lie outside of what is compiled, so that their results are kept and nothing else is."""

    def operations(what: Any) -> list[str]:
        """Returns the products and attentions of forward and backward pass."""
        settings = Learner(compile=what, activation_checkpointing="selective")
        policy = Policy(for_scorer(tiny_model()), settings)
        trained(policy, batches()[:1])  # compiles
        with torch.profiler.profile() as profile:
            trained(policy, batches()[:1])
        names = {"aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product_flash_attention_for_cpu"}
        return sorted(event.name for event in profile.events() if event.name in names)

    expected = operations("none")
    assert expected and operations("elementwise") == expected


def test_a_model_without_a_part_that_is_known_is_refused(counter: CompileCounterWithBackend) -> None:
    model = for_scorer(tiny_model())
    bare = Scorer(model)
    bare.model = torch.nn.Linear(2, 2)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r'learner\.compile.*is "elementwise", but Linear has no elementwise part'):
        compile_model(bare, ELEMENTWISE, CPU)


def test_on_a_cpu_nothing_is_compiled_by_itself(counter: CompileCounterWithBackend) -> None:
    trained(Policy(for_scorer(tiny_model()), Learner()), batches()[:1])
    assert counter.frame_count == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can compile for the GPU that is here")
def test_a_gpu_without_a_compiler_is_warned_of_once_and_refused_only_to_who_insists(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Torch itself says why it cannot compile for a GPU that is not here."""
    scorer, gpu = Scorer(for_scorer(tiny_model())), torch.device("cuda")
    compile_model(scorer, Learner(), gpu)
    (said,) = caplog.messages
    assert said.startswith("nothing is compiled, so updates take longer: torch cannot compile for cuda: ")
    compile_model(scorer, Learner(deterministic=True), gpu)
    assert caplog.messages == [said]
    with pytest.raises(ConfigError, match=r'learner\.compile.*is "elementwise", but torch cannot compile for cuda'):
        compile_model(scorer, ELEMENTWISE, gpu)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", pytest.param("selective", marks=PARTS), pytest.param("full", marks=PARTS)])
def test_layers_with_flash_attention_are_compiled_once_for_all_lengths(
    kind: Kept, counter: CompileCounterWithBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operation takes the greatest lengths as numbers, which differ in each micro-batch."""
    monkeypatch.setattr(policies, "packing_for", lambda *_: VariableLength)
    some = batches(VariableLength, 10)
    with flash_attention_on_the_cpu():
        expected = trained(Policy(for_scorer(tiny_model()), Learner()), some)
        policy = Policy(for_scorer(tiny_model()), Learner(compile="layers", activation_checkpointing=kind))
        check_compiled_once(policy, some, expected, counter)
