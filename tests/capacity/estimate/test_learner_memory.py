"""The estimate knows the bytes that autograd keeps and that a checkpoint holds exactly, and the peak within a tenth."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from echo_queue.capacity.estimate.learner_memory import (
    LOGITS_AT_ONCE,
    MERGED_AT_ONCE,
    MOMENTS_AT_ONCE,
    MicroBatchShape,
    activations,
    layer_activations,
    layer_gradients,
    learner_memory,
    logits,
    micro_batch_shape,
)
from echo_queue.capacity.estimate.lora import lora_shape
from echo_queue.capacity.estimate.transfer import anchor_bytes, checkpoint_bytes, delta_bytes
from echo_queue.config import Learner, Lora
from echo_queue.models import shape_of
from echo_queue.models.devices import DEVICES
from echo_queue.models.families import FAMILIES
from echo_queue.weights import delta, lora
from echo_queue.weights.lora import DESCRIPTION
from learner.batch.micro_batches import micro_batches
from learner.batch.prepare import prepare
from learner.model import optimizer, scorer
from learner.model.attention.rectangles import Rectangles
from learner.model.loading import load_policy
from learner.model.loading import prepare as for_scorer
from learner.model.lora.adapters import Adapters
from learner.model.past_versions import PastVersions
from learner.model.policy import Policy
from learner.ranks.team import Team
from learner.update import learn
from tests.learner.synthetic import group
from tests.models import config, shape

SMALL = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 24}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
PROMPT, SAMPLE, SAMPLES, GROUPS = 17, 20, 4, 3
HEAP_STEP = 1 << 16
"""Blocks of this size and more are given back to the kernel as soon as they are freed. It is less than any tensor of a
micro-batch that counts: glibc keeps smaller freed blocks, which are then resident and no part of the estimate."""


EXACT = ("qwen3", "qwen2", "llama", "mistral", "phi3", "smollm3")
"""The families whose activations are counted to the byte. Norms and experts of the others keep something else."""
WORDLESS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SPARSE = {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def small_model(model_type: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    settings = AutoConfig.for_model(**document(model_type))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(settings, dtype=dtype)
    return for_scorer(model)


def document(model_type: str) -> dict[str, Any]:
    experts = SPARSE if FAMILIES[model_type].sparse != "none" else {}
    return SMALL | WORDLESS | experts | {"model_type": model_type}


def kept_by_autograd(model: PreTrainedModel) -> tuple[dict[str, int], MicroBatchShape]:
    """Bytes of the floats that one micro-batch keeps beside the parameters: of the logits, and of the rest."""
    groups = [group(i, PROMPT, [SAMPLE] * SAMPLES, [1] + [0] * (SAMPLES - 1)) for i in range(GROUPS)]
    (batch,) = micro_batches(prepare(groups, Learner()), 1 << 20, Rectangles)
    own = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scored = scorer.Scorer(model)(batch, 1.0)
    assert scored.logprobs.requires_grad
    sizes = {"logits": 0, "activations": 0}
    for tensor in kept.values():
        what = "logits" if tensor.ndim and tensor.shape[-1] == SMALL["vocab_size"] else "activations"
        sizes[what] += tensor.untyped_storage().nbytes()
    return sizes, MicroBatchShape(GROUPS, PROMPT - 1, GROUPS * SAMPLES, SAMPLE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_activations_are_reckoned_to_the_byte_or_within_a_fifth(model_type: str, dtype: str) -> None:
    kept, batch = kept_by_autograd(small_model(model_type, getattr(torch, dtype)))
    width = {"float32": 4, "bfloat16": 2}[dtype]
    reckoned = activations(shape_of(document(model_type), ""), batch, width)
    assert reckoned == pytest.approx(kept["activations"], rel=0 if model_type in EXACT else 0.2, abs=0)
    if model_type != "gemma2":  # a capped head keeps more than its pieces would
        assert kept["logits"] == 4 * batch.drawn * SMALL["vocab_size"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"], ["o_proj", "up_proj"]])
def test_activations_with_adapters_are_reckoned_to_the_byte(targets: Any, dtype: str) -> None:
    """The first layer keeps less still where some of its layers have no adapters, which is not reckoned with."""
    settings = Lora(rank=4, target_modules=targets)
    model = small_model("qwen3", getattr(torch, dtype))
    adapters = Adapters(model, settings)
    adapters.initialise(0)
    kept, batch = kept_by_autograd(model)
    width, found = {"float32": 4, "bfloat16": 2}[dtype], shape_of(SMALL | {"model_type": "qwen3"}, "")
    lora_sizes = lora_shape(settings, found)
    more = activations(found, batch, width, lora=lora_sizes) - kept["activations"]
    first_layer = layer_activations(found, batch, width, lora=lora_sizes)
    assert more == 0 if targets == "all-linear" else 0 <= more < first_layer


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_their_state_and_a_publication_are_reckoned(dtype: str, tmp_path: Path) -> None:
    """To the byte, but for the publication, which is within a tenth: with the description of the base model it is more
    than the adapters."""
    sizes = SMALL | {"hidden_size": 512, "intermediate_size": 1_024, "model_type": "qwen3"}
    run = config(model={"dtype": dtype, "lora": {"rank": 32}, "base": str(tmp_path)}, learner={"lr": 1e-4})
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes)).save_pretrained(tmp_path)
    trained, published = load_policy(run, torch.device("cpu"), Team.alone()), []
    for number in range(1, 5):
        learn(trained, [group(number, 5, (12, 12), (1, 0))], number, run.learner, 1.0)
        published.append({name: tensor.clone() for name, tensor in trained.snapshot().items()})
    found, memory = shape_of(sizes, ""), learner_memory(run, shape_of(sizes, ""))
    base = sum(tensor.nbytes for tensor in trained.model.parameters() if not tensor.requires_grad)
    assert (memory.base, memory.masters) == (base, sum(master.nbytes for master in trained.masters.values()))
    saved = {piece.name: piece.tensor.nbytes for piece in trained.pieces()}
    assert memory.moments == sum(size for name, size in saved.items() if name.startswith("exp_avg"))
    assert memory.checkpoint == checkpoint_bytes(run, found) == memory.masters + memory.moments
    assert memory.snapshot == sum(tensor.nbytes for name, tensor in published[-1].items() if name != DESCRIPTION)
    stored = sum(len(shard.data) for shard in delta.encode(published[-2], published[-1], {}, delta.Settings()))
    assert stored == pytest.approx(delta_bytes(run, found, 0.01, "small"), rel=0.1)
    whole = sum(len(shard.data) for shard in delta.encode({}, published[-1], {}, delta.Settings()))
    assert whole == pytest.approx(anchor_bytes(run, found), rel=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_and_the_checkpoint_are_reckoned_to_the_byte(dtype: str) -> None:
    trained = Policy(small_model("qwen3"), config().learner, getattr(torch, dtype))
    learn(trained, [group(0)], 1, config().learner, 1.0)
    found = learner_memory(config(model={"dtype": dtype}), shape_of(SMALL | {"model_type": "qwen3"}, ""))
    held = {"masters": 0, "moments": 0}
    for piece in trained.pieces():
        if piece.name.startswith(("master/", "exp_avg")):
            held["masters" if piece.name.startswith("master/") else "moments"] += piece.tensor.nbytes
    assert held == {"masters": found.masters, "moments": found.moments}
    assert sum(held.values()) == checkpoint_bytes(config(), shape_of(SMALL | {"model_type": "qwen3"}, ""))
    copies = sum(tensor.nbytes for tensor in trained.snapshot().values())
    assert (found.snapshot, found.newest) == (copies, copies)
    assert found.checkpoint == sum(held.values())
    assert (found.compute_copy == 0) == (dtype == "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_leads_back_to_older_versions_takes_no_more_than_is_reckoned(dtype: str) -> None:
    """In float32, where nearly all values change, it is what is reckoned; here they change in bfloat16 as well."""
    settings = {"correction": {"preset": "ppo-tis"}, "lr": 1e-2}
    run = config(model={"dtype": dtype}, staleness={"s": 2}, learner=settings)
    trained = Policy(small_model("qwen3"), run.learner, getattr(torch, dtype))
    past = PastVersions(trained, run.staleness.s)
    for number in (1, 2, 3):
        learn(trained, [group(number)], number, run.learner, 1.0, past=past)
    reckoned = learner_memory(run, shape_of(SMALL | {"model_type": "qwen3"}, ""), change=1.0)
    assert 0.9 * reckoned.past <= past.nbytes <= reckoned.past
    usual = learner_memory(config(model={"dtype": dtype}), shape_of(SMALL | {"model_type": "qwen3"}, ""))
    assert usual.past == 0 and reckoned.state - usual.state == reckoned.past
    few = learner_memory(run, shape_of(SMALL | {"model_type": "qwen3"}, ""), change=0.01)
    assert few.past == (reckoned.past if dtype == "float32" else round(reckoned.past * 0.03))


def test_the_pieces_of_the_logits_are_those_of_the_forward_pass() -> None:
    assert LOGITS_AT_ONCE == scorer.LOGITS_AT_ONCE
    assert MERGED_AT_ONCE == lora.BLOCK_ELEMENTS
    assert MOMENTS_AT_ONCE == optimizer.AT_ONCE


@pytest.mark.parametrize("micro_tokens", [1, 200, 16_384])
def test_a_micro_batch_is_the_one_that_the_learner_makes(micro_tokens: int) -> None:
    run = config(
        model={"max_prompt_tokens": PROMPT, "max_new_tokens": SAMPLE},
        rollout={"group_size": SAMPLES},
        learner={"batch_groups": GROUPS, "micro_tokens": micro_tokens},
    )
    groups = [group(i, PROMPT, [SAMPLE] * SAMPLES, [1] + [0] * (SAMPLES - 1)) for i in range(GROUPS)]
    first = next(micro_batches(prepare(groups, Learner()), micro_tokens, Rectangles))
    rows, prompts = first.packing.queries.shape[0], first.packing.prompts.shape[0]
    assert micro_batch_shape(run) == MicroBatchShape(prompts, PROMPT - 1, rows, SAMPLE)
    assert micro_batch_shape(run).tokens == len(first.tokens)


def test_checkpointing_keeps_the_layers_inputs_and_one_layer() -> None:
    batch = MicroBatchShape(0, 0, 4, 4_096)
    whole, checkpointed = (activations(shape("qwen3-8b"), batch, 2, checkpointed=on) for on in (False, True))
    assert whole - checkpointed == 35 * layer_activations(shape("qwen3-8b"), batch, 2) - 36 * 16_384 * 4_096 * 2


@pytest.mark.parametrize("head_dim", [256, 264, 132])
def test_heads_that_flash_attention_does_not_compute_take_more_memory_on_a_gpu(head_dim: int) -> None:
    """Wider ones take the mask that a CPU takes; those whose width is not a multiple of 8 have their scores written."""
    batch, one = MicroBatchShape(2, 300, 8, 500), replace(shape("qwen3-8b"), head_dim=head_dim)
    cpu, gpu = (layer_activations(one, batch, 2, kind) for kind in ("cpu", "cuda"))
    mask, keys = 8 * 500 * 800 * 2, 2 * 300 + 8 * 800
    written_out = 32 * (2 * 300**2 + 8 * 500 * 800) * (4 + 2) + 2 * 2 * keys * (32 - 8) * head_dim
    assert gpu - cpu == {256: -mask, 264: 0, 132: written_out - mask}[head_dim]


def test_the_logits_are_bounded_whatever_the_vocabulary() -> None:
    found = [logits(shape("qwen3-8b"), MicroBatchShape(1, 255, rows, 4_096), 2) for rows in (1, 4)]
    assert found[0] == found[1] <= LOGITS_AT_ONCE["cpu"] * (3 * 4 + 2)


def test_devices_share_the_state() -> None:
    """16 bytes a parameter over eight devices, and no float32 copy of a whole model on any of them."""
    run = config(model={"dtype": "bfloat16"})
    one, eight = (learner_memory(run, shape("qwen3-8b"), devices, "cuda") for devices in (1, 8))
    assert one.masters + one.moments + one.gradients == 16 * shape("qwen3-8b").total == 131_051_765_760
    assert one.compute_copy < shape("qwen3-8b").total, "two layers and the head, not the model"
    assert eight.masters == one.masters // 8
    assert eight.state < one.state / 4


def test_what_is_offloaded_is_in_host_memory() -> None:
    """Qwen3-8B has 65.5 GB of moments, of which 0.5 GB is on the GPU at a time, and a snapshot of 16.4 GB."""
    found = {
        (kind, offload): learner_memory(
            config(model={"dtype": "bfloat16"}, learner={"offload": offload}), shape("qwen3-8b"), 1, kind
        )
        for kind in ("cpu", "cuda")
        for offload in (False, True)
    }
    assert found["cpu", True] == found["cpu", False], "its device is the host"
    usual, less, total = found["cuda", False], found["cuda", True], shape("qwen3-8b").total
    assert usual.state - less.state == less.host - usual.host == (8 + 2) * total - 8 * MOMENTS_AT_ONCE
    assert usual.host == (2 + 12) * total


@pytest.mark.parametrize(
    ("micro_tokens", "offload", "fits"), [(16_384, False, False), (8_192, False, False), (16_384, True, True)]
)
def test_all_weights_of_8b_fit_one_h200_only_if_they_are_offloaded(
    micro_tokens: int, offload: bool, fits: bool
) -> None:
    """Without a version that is being published, micro-batches of 8,192 tokens leave 1 % of the card free."""
    settings = {"micro_tokens": micro_tokens, "offload": offload}
    run = config(model={"dtype": "bfloat16", "max_prompt_tokens": 256, "max_new_tokens": 3_840}, learner=settings)
    found, card = learner_memory(run, shape("qwen3-8b"), 1, "cuda"), DEVICES["h200"]
    assert (found.checkpointed_needed <= card.usable) is fits
    alone = replace(found, snapshot=0).checkpointed_needed
    assert (alone <= card.memory) is (fits or micro_tokens == 8_192)
    assert (alone <= card.usable) is fits


def test_the_peak_is_that_of_the_largest_phase() -> None:
    """What the head's gradient takes, and what a layer's or the final reduction takes, are never there together."""
    run = config(model={"dtype": "bfloat16"}, learner={"micro_tokens": 16_384})
    found = learner_memory(run, shape("qwen3-8b"), 1, "cuda")
    layer = found.checkpointed_activations + found.layer_gradients + found.reduction
    head = found.checkpointed_activations - found.recomputed + found.logits + found.head_gradient
    assert found.checkpointed_peak == found.state + max(layer, head, found.final_reduction - found.compute_copy)
    assert found.reduction == 2 * 4 * shape("qwen3-8b").largest_layer
    assert found.final_reduction == 2 * 4 * 2 * shape("qwen3-8b").embedding, "the head is not the embedding"


def test_flash_attention_writes_the_gradient_of_a_key_for_each_query_head() -> None:
    """Of 8,192 drawn tokens, each eighth sees a prompt of 7,167 besides; on a CPU nothing is expanded."""
    batch, one = MicroBatchShape(1, 7_167, 8, 1_024), shape("qwen3-8b")
    keys = 8 * (7_167 + 1_024)
    expanded = 2 * 2 * keys * (1_024 + 4_096) + 8_192 * 4_096 * (2 + 4)
    assert layer_gradients(one, batch, 2, "cuda") == expanded
    assert layer_gradients(one, batch, 2, "cpu") == 2 * batch.tokens * 2 * (12_288 + 4_096) < expanded


def test_a_reference_model_counts_only_if_there_is_one() -> None:
    found = [learner_memory(config(learner={"kl": kl}), shape("qwen3-0.6b")).reference for kl in (0.0, 0.1)]
    assert found == [0, 4 * 596_049_920], "in float32, as it computes"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "groups", "length", "micro_tokens"),
    [
        (0, 2, 64, 512),
        *(
            pytest.param(*other, marks=pytest.mark.proof(kind="peaks", share=0.25))
            for other in ((32, 2, 64, 512), (0, 2, 128, 1_024), (32, 4, 128, 1_024), (32, 4, 128, 2_048))
        ),
    ],
)
def test_the_peak_of_a_learner_on_a_cpu_is_within_a_tenth(
    rank: int, groups: int, length: int, micro_tokens: int, tmp_path: Path
) -> None:
    """The peak is measured in a process whose heap gives freed blocks back. By default glibc keeps them, which takes a
    quarter more at worst."""
    settings: dict[str, Any] = {
        "run": {"name": "t", "dir": str(tmp_path)},
        "model": {"max_prompt_tokens": length // 2, "max_new_tokens": length, "lora": {"rank": rank}},
        "rollout": {"group_size": 8},
        "learner": {"batch_groups": groups, "micro_tokens": micro_tokens},
    }
    model = WIDE | {"vocab_size": 16_000, "num_hidden_layers": 6, "tie_word_embeddings": True}
    found = learner_memory(config(**settings), shape_of(model, ""))
    # Nothing is published or saved here.
    assert measured_peak(settings, model) == pytest.approx(found.peak - found.copies, rel=0.1)


@pytest.mark.slow
def test_the_reduction_at_the_end_of_a_sharded_update_is_the_peak_of_few_tokens(tmp_path: Path) -> None:
    """Two layers and a large vocabulary: the second micro-batch adds to the gradient that the first one left."""
    settings: dict[str, Any] = {
        "run": {"name": "t", "dir": str(tmp_path)},
        "model": {"dtype": "bfloat16", "max_prompt_tokens": 8, "max_new_tokens": 8},
        "rollout": {"group_size": 2},
        "learner": {"batch_groups": 2, "micro_tokens": 1},
    }
    model = WIDE | {"vocab_size": 32_000, "num_hidden_layers": 2, "tie_word_embeddings": False}
    found = learner_memory(config(**settings), shape_of(model, ""))
    assert found.peak == found.state - found.compute_copy + found.final_reduction
    assert measured_peak(settings, model) == pytest.approx(found.peak - found.copies, rel=0.1)


WIDE = {"model_type": "qwen3", "hidden_size": 512, "head_dim": 64, "num_attention_heads": 8}
WIDE |= {"num_key_value_heads": 4, "intermediate_size": 1_536}


def measured_peak(settings: dict[str, Any], model: dict[str, Any]) -> int:
    """Returns the bytes of a few updates, measured in a process of their own."""
    environ = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(HEAP_STEP), "MALLOC_TRIM_THRESHOLD_": str(HEAP_STEP)}
    command = [
        sys.executable,
        "-m",
        "tests.capacity.estimate.measured_learner",
        json.dumps(settings),
        json.dumps(model),
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
