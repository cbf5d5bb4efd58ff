"""On a GPU flash attention gives the results of rectangles, and a policy gives those of a CPU.

`python -m tests.learner.model.test_gpu` prints a digest of a policy after updates with `learner.deterministic`.
"""

import hashlib
import logging
import subprocess
import sys

import pytest
import torch

from echo_queue.config import Learner
from learner.batch.packing import LayerAttention, Lengths
from learner.model import device, optimizer
from learner.model.attention.rectangles import Rectangles
from learner.model.attention.varlen import VariableLength
from learner.model.compilation import compile_model
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.model.scorer import Scorer
from learner.model.sharding import local
from learner.publication.snapshot import take_share
from learner.ranks.rendezvous import leave
from learner.update import learn
from tests.learner.model.test_attention import CASES
from tests.learner.states import restore, state_of
from tests.learner.synthetic import group, tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)


def policy_on(where: torch.device, settings: Learner, dtype: torch.dtype) -> Policy:
    """A policy whose collectives are its device's: those of a policy of another device end."""
    leave()
    return Policy(for_scorer(tiny_model()).to(where), settings, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("case", CASES)
def test_flash_attention_gives_the_results_and_gradients_of_rectangles(case: Lengths, window: int | None) -> None:
    layer = LayerAttention(0.125, window)
    count = int(case.prompts.sum() + case.samples.sum())
    results = []
    for kind in (VariableLength, Rectangles):
        draw = torch.Generator(GPU).manual_seed(0)
        states = [
            torch.randn(count, heads, 64, generator=draw, device=GPU, dtype=torch.bfloat16).requires_grad_()
            for heads in (8, 2, 2)
        ]
        output = kind.of(case).to(GPU).attend(states[0], states[1], states[2], layer)
        output.float().square().sum().backward()
        results.append([output, *(state.grad for state in states)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["none", "selective", "full"])
def test_an_update_gives_what_it_gives_on_a_cpu(dtype: torch.dtype, kind: str) -> None:
    settings = Learner(activation_checkpointing=kind, compile="none")  # type: ignore[arg-type]
    results = []
    for where in (torch.device("cpu"), GPU):
        policy = policy_on(where, settings, dtype)
        learned = learn(policy, [group(0), group(1)], 1, settings, 1.0)
        results.append((learned.grad_norm, learned.sums.loss, learned.sums.entropy))
    assert results[1] == pytest.approx(results[0], rel=1e-3 if dtype == torch.float32 else 0.05)


def test_elementwise_parts_are_compiled_unless_no_part_is_known(caplog: pytest.LogCaptureFixture) -> None:
    results = []
    with caplog.at_level(logging.INFO):
        for settings in (Learner(compile="none"), Learner()):
            policy = policy_on(GPU, settings, torch.bfloat16)
            learned = learn(policy, [group(0), group(1)], 1, settings, 1.0)
            results.append((learned.grad_norm, learned.sums.loss, learned.sums.entropy))
        bare = Scorer(for_scorer(tiny_model()))
        bare.model = torch.nn.Linear(2, 2)  # type: ignore[assignment]
        compile_model(bare, Learner(), GPU)
    assert results[1] == pytest.approx(results[0], rel=0.05)
    compiled, unknown = [said for name, _, said in caplog.record_tuples if name == "learner.model.compilation"]
    assert compiled.startswith('compiles "elementwise"') and "Linear has no elementwise part" in unknown


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_offloaded_changes_nothing(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps from the same gradients, and the same version from a copy in host memory."""
    monkeypatch.setattr(optimizer, "AT_ONCE", 1_000)
    states, versions = [], []
    for settings in (Learner(lr=3e-3), Learner(lr=3e-3, offload=True)):
        policy = policy_on(GPU, settings, dtype)
        draw = torch.Generator(GPU).manual_seed(0)
        for _ in range(3):
            for master in policy.masters.values():
                rows = local(master)
                gradient = torch.randn(rows.shape, generator=draw, device=GPU)
                master.grad = master.new_empty(master.shape)
                local(master.grad).copy_(gradient)
            policy.step(3e-3)
        states.append(state_of(policy))
        versions.append(take_share(policy.published(), dtype, policy.team, 1 << 20, on_host=settings.offload))
    for name, expected in states[0].items():
        assert torch.equal(states[1][name], expected), name
    for stretch, row in versions[1].rows.items():
        assert not row.is_cuda and torch.equal(row, versions[0].rows[stretch].cpu())


def test_a_snapshot_on_a_gpu_is_read_beside_the_next_kernels() -> None:
    weights = {"w": torch.ones(1 << 20, device=GPU) * 3}
    event = device.ready(weights.values())
    assert event is not None
    with device.side_stream(event):
        assert float(weights["w"].sum()) == 3 * (1 << 20)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_policy_goes_on_bit_for_bit_on_a_gpu(dtype: str) -> None:
    """With `learner.deterministic`, in processes of their own, since CUDA must not have started before."""
    command = [sys.executable, "-m", "tests.learner.model.test_gpu", dtype]
    lives = [
        subprocess.Popen([*command, life], stdout=subprocess.PIPE, text=True) for life in ("whole", "whole", "restored")
    ]
    digests = {life.communicate(timeout=300)[0].split()[-1] for life in lives}
    assert [life.returncode for life in lives] == [0, 0, 0] and len(digests) == 1


def digest_after_two_updates(dtype: torch.dtype, *, restored: bool) -> str:
    """Returns the digest of masters and moments; of a policy that was `restored` between the updates, if wanted."""
    device.compute_deterministically()
    torch.cuda.set_device(GPU)
    settings = Learner(lr=3e-3, deterministic=True)
    policy = policy_on(GPU, settings, dtype)
    learn(policy, [group(0), group(1)], 1, settings, 1.0)
    if restored:
        kept = state_of(policy)
        policy = policy_on(GPU, settings, dtype)
        restore(policy, kept)
    learn(policy, [group(2), group(3)], 2, settings, 1.0)
    found = hashlib.sha256()
    for name, tensor in sorted(state_of(policy).items()):
        if name != "rng":
            found.update(name.encode() + tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    print(digest_after_two_updates(getattr(torch, sys.argv[1]), restored=sys.argv[2] == "restored"))
