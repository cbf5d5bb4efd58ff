"""What a run records about itself: one JSON object per line in `metrics.jsonl`, appended by the learner.

A line is written once per update, whole, and survives a restart; after a fork the reader keeps, for each
version, the line of the highest lineage.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True)
class UpdateMetrics:
    """One optimizer update. Seconds are wall clock; `time_s` is seconds since the epoch at its end."""

    time_s: float
    lineage: int
    version: int
    reward_mean: float
    reward_std: float
    groups: int
    samples: int
    tokens: int
    lags: dict[str, int]
    """Groups trained at each lag (updates)."""
    zero_variance_groups: int
    loss: float
    grad_norm: float
    clip_fraction: float
    kl_behaviour: float
    """Mean of behaviour log-probability minus the learner's: how far off-policy the batch was."""
    entropy: float
    lr: float
    wait_s: float
    """Learner idle: waiting for admissible groups."""
    train_s: float
    save_s: float
    """Checkpoint, commit and handing a snapshot to the publisher."""
    window: float
    depths: dict[str, int]
    """Queue depths after the update: backlog, tasks, retry, replay, trained, dead."""
    sent_back: int
    """Groups sent back as late or abandoned, since the run began."""
    trained_ids: tuple[str, ...] = ()


class MetricsLog:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, metrics: UpdateMetrics) -> None:
        self._file.write(orjson.dumps(asdict(metrics), option=orjson.OPT_APPEND_NEWLINE))


def read(path: Path) -> Iterator[UpdateMetrics]:
    """Updates of the surviving history, by version. A torn last line is left out."""
    surviving: dict[int, UpdateMetrics] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        metrics = UpdateMetrics(**fields | {"trained_ids": tuple(fields["trained_ids"])})
        known = surviving.get(metrics.version)
        if known is None or metrics.lineage >= known.lineage:
            surviving[metrics.version] = metrics
    return iter([surviving[version] for version in sorted(surviving)])
