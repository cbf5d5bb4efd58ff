"""Times, bytes and lags are those that a person gets with pencil and paper from the public shapes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from echo_queue.capacity.estimate import Assumptions, estimate
from echo_queue.capacity.estimate.lag import lag
from echo_queue.capacity.estimate.training_time import Batch, flops_of_update, flops_per_token, forward_passes
from echo_queue.capacity.estimate.transfer import ANCHOR_BYTES, broadcast, bytes_per_change, delta_bytes
from echo_queue.capacity.estimate.worker_memory import worker_memory
from echo_queue.config import Config
from echo_queue.errors import ConfigError
from echo_queue.models import shape_of
from echo_queue.models.devices import cpu_has_bfloat16, device, learner_is_on_cpu, measured_thread_flops
from echo_queue.weights.delta.encode import encode
from tests.models import config, shape

EIGHT_H100 = Assumptions(device="h100", devices=8, mfu=0.4)


def long_run(**changes: dict[str, Any]) -> Config:
    """64 prompts of 16 samples with 4,096 tokens each; prompts are short."""
    sections: dict[str, dict[str, Any]] = {
        "model": {"base": "Qwen/Qwen3-8B", "dtype": "bfloat16", "max_prompt_tokens": 1, "max_new_tokens": 4_096},
        "rollout": {"workers": 64},
        "learner": {"batch_groups": 64},
    }
    for section, values in changes.items():
        sections[section] = sections.get(section, {}) | values
    return config(**sections)


@pytest.mark.parametrize(
    ("name", "gflop", "seconds"),
    # 6 · matmul weights + 6 · layers · heads · head_dim · 4,096; 4,194,304 tokens at 0.4 of 8 · 989 TFLOP/s.
    [("qwen3-0.6b", 4.99, 6.6), ("qwen3-4b", 27.75, 36.8), ("qwen3-8b", 49.03, 65.0), ("qwen3-30b-a3b", 23.08, 30.6)],
)
def test_operations_and_the_time_of_an_update(name: str, gflop: float, seconds: float) -> None:
    assert flops_per_token(shape(name), 4_096) == pytest.approx(gflop * 1e9, rel=1e-3)
    assert estimate(long_run(), shape(name), EIGHT_H100).t_train_s == pytest.approx(seconds, rel=3e-3)


def test_the_operations_of_8b_by_hand() -> None:
    matmul = 36 * (4_096 * 10_240 + 3 * 4_096 * 12_288) + 151_936 * 4_096
    assert flops_per_token(shape("qwen3-8b"), 4_096) == 6 * matmul + 6 * 36 * 32 * 128 * 4_096


def test_a_prompt_is_counted_once_for_all_of_its_samples() -> None:
    found = shape("qwen3-8b")
    body, head, pair = found.matmul - found.embedding, found.embedding, 12 * 36 * 4_096
    pairs = 3 * (100**2 / 2 + 5 * (50**2 / 2 + 100 * 50))
    by_hand = 6 * (body * 3 * (100 + 5 * 50) + head * 3 * 5 * 50) + pair * pairs
    assert flops_of_update(found, Batch(3, 5, 100, 50)) == by_hand


@pytest.mark.parametrize(
    ("name", "one", "five", "anchor", "checkpoint"),
    # 1.27 and 0.991 bytes per changed value, 1.33 per value of an anchor, 12 per value of a checkpoint.
    [
        ("qwen3-0.6b", 7.569e6, 29.53e6, 0.7927e9, 7.1526e9),
        ("qwen3-4b", 51.08e6, 199.3e6, 5.350e9, 48.27e9),
        ("qwen3-8b", 104.0e6, 405.9e6, 10.894e9, 98.289e9),
        ("qwen3-30b-a3b", 387.7e6, 1_513e6, 40.61e9, 366.4e9),
    ],
)
def test_bytes_of_publications_and_checkpoints(
    name: str, one: float, five: float, anchor: float, checkpoint: float
) -> None:
    found = estimate(long_run(), shape(name), EIGHT_H100)
    assert [*found.deltas.values()] == pytest.approx([one, five], rel=1e-3)
    assert (found.anchor_bytes, found.checkpoint_bytes) == pytest.approx((anchor, checkpoint), rel=1e-3)


def test_bytes_per_change_are_those_of_the_table() -> None:
    assert [bytes_per_change(share, "small") for share in (0.001, 0.008, 0.05, 1.0)] == [0.94, 0.94, 0.73, 0.67]
    assert [bytes_per_change(share, "fast") for share in (0.001, 0.064, 1.0)] == [1.31, 0.95, 0.67]
    assert 0.73 < bytes_per_change(0.03, "small") < 0.81


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_anchor_has_the_bytes_that_the_codec_writes(dtype: str) -> None:
    weights = {"w": (torch.randn(2 << 20, generator=torch.Generator().manual_seed(0)) * 0.02).to(getattr(torch, dtype))}
    size = sum(len(shard.data) for shard in encode({}, weights))
    assert size / len(weights["w"]) == pytest.approx(ANCHOR_BYTES[dtype], rel=0.02)


def test_in_float32_every_value_changes() -> None:
    found = shape("qwen3-0.6b")
    assert (
        delta_bytes(config(), found, 0.01, "fast")
        == delta_bytes(config(), found, 0.5, "small")
        == round(2.27 * found.total)
    )


def test_a_delta_that_is_not_worth_it_is_an_anchor() -> None:
    found = shape("qwen3-0.6b")
    assert delta_bytes(long_run(), found, 1.0, "fast") == round(0.67 * found.total)
    assert bytes_per_change(1.0, "fast") < 0.9 * ANCHOR_BYTES["bfloat16"]


def test_a_broadcast_is_encoded_sent_and_applied() -> None:
    found = broadcast(long_run(), shape("qwen3-8b"), 0.01, 1.0)
    assert (found.encode_s, found.transfer_s, found.apply_s) == pytest.approx((11.70, 0.832, 8.191), rel=1e-3)
    small = broadcast(long_run(weights={"coding": "small"}), shape("qwen3-8b"), 0.01, 1.0)
    assert (small.encode_s, small.apply_s) == pytest.approx((32.76, 25.20), rel=1e-3)
    many, one = (
        broadcast(long_run(weights={"part_bytes": size}), shape("qwen3-0.6b"), 0.01, 1.0) for size in (1 << 20, 1 << 32)
    )
    assert one.transfer_s == pytest.approx(2 * many.transfer_s)


@pytest.mark.parametrize(
    ("name", "kv"),  # 2 · layers · key heads · head_dim · 2 bytes
    [("qwen3-0.6b", 114_688), ("qwen3-4b", 147_456), ("qwen3-8b", 147_456), ("qwen3-30b-a3b", 98_304)],
)
def test_the_cache_of_a_worker(name: str, kv: int) -> None:
    sections = {"model": {"dtype": "bfloat16", "max_prompt_tokens": 100, "max_new_tokens": 1_000}}
    rollout = {"concurrent_groups": 2, "group_size": 4}
    found = worker_memory(config(**sections, rollout=rollout), shape(name))
    assert (found.kv_per_token, found.tokens_in_flight) == (kv, 8 * 1_100)
    shared = worker_memory(config(**sections, rollout=rollout | {"engine": "vllm"}), shape(name))
    assert shared.tokens_in_flight == 2 * 100 + 8 * 1_000
    assert shared.engine == 2 * shape(name).total + kv * shared.tokens_in_flight


HALF_SLIDING = {"model_type": "gemma2", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 4}
HALF_SLIDING |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10}


def test_a_window_leaves_out_keys_and_pairs_beyond_it() -> None:
    """Two of four layers see 300 tokens; all pairs are counted one by one."""
    windowed, full = (shape_of(HALF_SLIDING | {"sliding_window": window}, "") for window in (300, 1 << 20))
    rollout = {"concurrent_groups": 2, "group_size": 4, "engine": "vllm"}
    sections = {"model": {"dtype": "bfloat16", "max_prompt_tokens": 100, "max_new_tokens": 1_000}, "rollout": rollout}
    cached, needed = (worker_memory(config(**sections), one).kv_cache for one in (full, windowed))
    assert (cached, needed) == (4 * 16 * 8_200, 2 * 16 * 8_200 + 2 * 16 * 8 * 300)
    lacking = 2 * sum(max(0, place - 300) for place in range(1, 1_101))
    assert flops_per_token(full, 1_100) - flops_per_token(windowed, 1_100) == pytest.approx(
        12 * 8 * lacking / 1_100, rel=0.01
    )
    batch = Batch(1, 3, 100, 1_000)
    beyond = 2 * 3 * sum(max(0, place - 300) for place in range(101, 1_101))
    assert flops_of_update(full, batch) - flops_of_update(windowed, batch) == pytest.approx(12 * 8 * beyond, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, 0),
        ({"kl": 0.1}, 1),
        ({"kl": 0.1, "correction": {"preset": "m2po"}}, 2),
        ({"correction": {"preset": "decoupled-ppo"}}, 0),  # in one step the policy is its own proximal one
        ({"correction": {"preset": "decoupled-ppo"}, "mini_batches": 4}, 3 / 4),
        ({"correction": {"preset": "ppo-tis"}}, 1),
    ],
)
def test_a_forward_pass_besides_costs_a_third_of_a_pass_that_trains(settings: dict[str, Any], passes: float) -> None:
    usual, long = estimate(long_run(), shape("qwen3-8b")), long_run(learner=settings)
    assert forward_passes(long) == passes
    found = estimate(long, shape("qwen3-8b"))
    assert found.flops_of_update == pytest.approx((1 + passes / 3) * usual.flops_of_update)
    assert found.t_train_s == pytest.approx((1 + passes / 3) * usual.t_train_s)


def test_checkpointing_of_whole_layers_computes_their_forward_pass_again() -> None:
    """A third of all operations but the head's, which no model's share of a peak counts."""
    found = shape("qwen3-8b")
    usual, again = (
        estimate(long_run(learner={"activation_checkpointing": kind}), found) for kind in ("selective", "full")
    )
    assert (usual.recomputed_flops, again.flops_of_update) == (0, usual.flops_of_update)
    head = 6 * found.embedding * again.batch.sampled
    assert again.recomputed_flops == pytest.approx((again.flops_of_update - head) / 3)
    assert again.t_train_s / usual.t_train_s == pytest.approx(1 + again.recomputed_flops / again.flops_of_update)


def test_so_many_workers_as_suffice_keep_the_learner_busy() -> None:
    few = estimate(long_run(rollout={"workers": 3}), shape("qwen3-8b"), EIGHT_H100)
    assert few.idle_share == pytest.approx(1 - few.t_train_s / few.generation_s) and few.idle_share > 0.5
    enough = few.workers_needed
    kept, short = (
        estimate(long_run(rollout={"workers": number}), shape("qwen3-8b"), EIGHT_H100)
        for number in (enough, enough - 1)
    )
    assert kept.idle_share == 0 < short.idle_share
    assert kept.workers_needed == short.workers_needed == enough


TIMES = {"t_train_s": 65.0, "t_bcast_s": 12.0, "t_gen_s": 100.0}


def test_the_worst_lag_and_the_speed_at_which_s_holds() -> None:
    found = lag(4, 1, **TIMES)  # 1 + ⌈112 / 65 + 1/2⌉
    assert (found.worst, found.holds, found.publications_keep_up) == (4, True, True)
    assert found.least_t_train_s == pytest.approx(112 / 2.5)
    at_least = lag(4, 1, **TIMES | {"t_train_s": found.least_t_train_s})
    assert (at_least.worst, lag(4, 1, **TIMES | {"t_train_s": 44.0}).worst) == (4, 5)
    assert not lag(3, 1, **TIMES).holds
    assert lag(1, 1, **TIMES).least_t_train_s == math.inf


def test_kappa_is_what_publications_need() -> None:
    slow = TIMES | {"t_bcast_s": 140.0}
    assert [lag(8, kappa, **slow).kappa for kappa in (1, 4, "auto")] == [1, 4, 3]
    assert [lag(8, kappa, **slow).publications_keep_up for kappa in (1, 4, "auto")] == [False, True, True]
    assert lag(8, 1, **slow).worst == 3 + math.ceil(240 / 65 + 0.5)
    assert lag(1, "auto", **slow).kappa == 2, "at most S + 1"


def test_few_workers_make_the_learner_wait_and_the_data_fresher() -> None:
    found = estimate(long_run(rollout={"workers": 8}), shape("qwen3-8b"), EIGHT_H100)
    # 4,194,304 tokens by 8 · 8 · 16 samples at once, each of 50 tokens a second.
    assert found.generation_s == pytest.approx(81.92)
    assert found.t_gen_s == pytest.approx(81.92)
    assert found.lag_of_these_workers.worst <= found.lag.worst


def test_a_shorter_mean_sample_makes_updates_shorter() -> None:
    half = estimate(long_run(), shape("qwen3-8b"), Assumptions(device="h100", mean_tokens=2_048))
    full = estimate(long_run(), shape("qwen3-8b"), Assumptions(device="h100"))
    assert half.t_train_s < 0.5 * full.t_train_s
    assert half.t_gen_s == full.t_gen_s, "the longest sample stays as long"
    assert half.lag.worst >= full.lag.worst


@pytest.mark.parametrize(
    ("assumed", "where"),
    [
        (Assumptions(device="b42"), "--device"),
        (Assumptions(devices=0), "--devices"),
        (Assumptions(mfu=1.5), "--mfu"),
        (Assumptions(change=0.0), "--change"),
        (Assumptions(link_gbit=math.nan), "--link-gbit"),
        (Assumptions(tokens_per_s=-1.0), "--tokens-per-s"),
        (Assumptions(mean_tokens=0), "--mean-tokens"),
    ],
)
def test_an_assumption_that_cannot_be_is_named(assumed: Assumptions, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        estimate(long_run(), shape("qwen3-0.6b"), assumed)
    assert [problem.where for problem in caught.value.problems] == [where]


def test_a_cpu_has_as_many_threads_as_the_learner() -> None:
    assert device("cpu", 4).flops == 4 * device("cpu", 1).flops
    assert device("cpu", 4, measured_thread_flops()).flops > 0


def test_a_processor_says_whether_it_multiplies_bfloat16(tmp_path: Path) -> None:
    said = {"x86": "flags\t\t: fpu avx512f avx512_bf16", "arm": "Features\t: fp bf16", "old": "flags\t\t: fpu avx2"}
    for name, line in said.items():
        (tmp_path / name).write_text(f"processor\t: 0\n{line}\n", encoding="utf-8")
    assert [cpu_has_bfloat16(tmp_path / name) for name in (*said, "none")] == [True, True, False, False]


def test_a_machine_with_a_gpu_trains_on_it_unless_told_otherwise(tmp_path: Path) -> None:
    auto = config()
    assert learner_is_on_cpu(auto, {}, tmp_path)
    (tmp_path / "nvidia0").touch()
    assert not learner_is_on_cpu(auto, {}, tmp_path)
    assert learner_is_on_cpu(auto, {"CUDA_VISIBLE_DEVICES": ""}, tmp_path)
    assert learner_is_on_cpu(config(learner={"device": "cpu"}), {}, tmp_path)
    assert not learner_is_on_cpu(config(learner={"device": "cuda"}), {}, tmp_path / "none")
