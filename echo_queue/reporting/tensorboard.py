"""Writes event files for TensorBoard from `metrics.jsonl`; needs the extra `tensorboard`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

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


def write(updates: Sequence[UpdateMetrics], directory: Path) -> None:
    """Replaces the content of `directory` by event files whose step is the version."""
    shutil.rmtree(directory, ignore_errors=True)
    writer = EventFileWriter(str(directory))
    for update in updates:
        values = {tag: getattr(update, field) for tag, field in SCALARS.items()}
        values |= {f"queue/{name}": depth for name, depth in update.depths.items()}
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if value is not None]
        writer.add_event(Event(wall_time=update.time_s, step=update.version, summary=Summary(value=scalars)))
    writer.close()
