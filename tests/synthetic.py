"""A made-up run for tests of what a person sees: rewards that rise, one restart of the learner."""

from echo_queue.reporting.metrics import UpdateMetrics

START_S = 1_790_000_000.0


def update(version: int, *, lineage: int = 1, time_s: float | None = None, **fields: object) -> UpdateMetrics:
    values: dict[str, object] = {
        "time_s": START_S + version if time_s is None else time_s,
        "lineage": lineage,
        "version": version,
        "reward_mean": min(0.95, 0.15 + version / 50),
        "reward_std": 0.3,
        "groups": 16,
        "samples": 256,
        "tokens": 3_000,
        "lags": {"0": 4, "1": 12},
        "zero_variance_groups": 3,
        "loss": -0.01,
        "grad_norm": 0.5,
        "clip_fraction": 0.02,
        "kl_behaviour": 0.001,
        "entropy": 0.4,
        "lr": 1e-4,
        "wait_s": 0.1,
        "train_s": 0.6,
        "save_s": 0.1,
        "window": 2.0,
        "depths": {
            "backlog": 1_600 - 16 * version,
            "tasks": 16,
            "retry": 0,
            "ready": 8,
            "replay": 8,
            "trained": 16 * version,
        },
        "sent_back": 2,
        "workers": 2,
        "t_bcast_s": 0.5,
        "store_bytes": 1_000 * version,
    }
    return UpdateMetrics(**(values | fields))  # type: ignore[arg-type]
