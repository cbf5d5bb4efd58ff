"""Writes event files for TensorBoard from `metrics.jsonl` and `evaluations.jsonl`; needs the extra `tensorboard`."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from echo_queue.evaluation.results import EvaluationResult, curves
from echo_queue.reporting.metrics import UpdateMetrics

SCALARS = {
    "reward/mean": "reward_mean",
    "reward/std": "reward_std",
    "policy/entropy": "entropy",
    "policy/behaviour_kl": "kl_behaviour",
    "policy/clip_fraction": "clip_fraction",
    "policy/filtered_fraction": "filtered_fraction",
    "policy/old_exact_fraction": "old_exact_fraction",
    "policy/kl_engine": "kl_engine",
    "policy/reference_kl": "kl_reference",
    "policy/ess_tokens": "ess_tokens",
    "policy/ess_samples": "ess_samples",
    "policy/second_moment": "second_moment",
    "samples/length_mean": "length_mean",
    "samples/truncated_fraction": "truncated_fraction",
    "optimizer/loss": "loss",
    "optimizer/grad_norm": "grad_norm",
    "optimizer/lr": "lr",
    "learner/wait_s": "wait_s",
    "learner/train_s": "train_s",
    "learner/save_s": "save_s",
    "queue/window": "window",
    "queue/sent_back": "sent_back",
    "queue/workers": "workers",
    "weights/t_bcast_s": "t_bcast_s",
    "weights/pause_s": "pause_s",
    "weights/store_bytes": "store_bytes",
    "weights/peer_bytes": "peer_bytes",
}


COMPONENT = ("groups", "reward_mean", "length_mean", "truncated_fraction", "zero_variance_groups")
"""The figures of a component, each under `components/` and its name."""
EVALUATED = ("mean", "low", "high", "truncated", "tokens")


def write(updates: Sequence[UpdateMetrics], directory: Path, evaluations: Sequence[EvaluationResult] = ()) -> None:
    """Replaces the content of `directory` by event files whose step is the version."""
    shutil.rmtree(directory, ignore_errors=True)
    writer = EventFileWriter(str(directory))
    for update in updates:
        values = {tag: getattr(update, field) for tag, field in SCALARS.items()}
        values |= {f"queue/{name}": depth for name, depth in update.depths.items()}
        values |= _of_components(update)
        writer.add_event(_event(update.time_s, update.version, values))
    for result in _answered(evaluations):
        values = {f"{result.evaluation}/{name}": getattr(result, name) for name in EVALUATED}
        values |= {f"{result.evaluation}/pass_at_{k}": share for k, share in (result.pass_at or {}).items()}
        writer.add_event(_event(result.time_s, result.update, values))
    writer.close()


def _of_components(update: UpdateMetrics) -> dict[str, float]:
    """Returns the figures of each component of which the update trained a group."""
    found = dict[str, float]()
    for name, figures in update.components.items():
        found |= {f"components/{name}/{field}": getattr(figures, field) for field in COMPONENT}
        found |= {f"components/{name}/rewards/{function}": mean for function, mean in figures.rewards.items()}
    return found


def _answered(evaluations: Sequence[EvaluationResult]) -> Iterator[EvaluationResult]:
    for curve in curves(evaluations).values():
        yield from (one for one in curve if not one.given_up)


def _event(time_s: float, step: int, values: Mapping[str, float | None]) -> Event:
    """Returns what was measured at a step; what is not known is left out."""
    scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if value is not None]
    return Event(wall_time=time_s, step=step, summary=Summary(value=scalars))
