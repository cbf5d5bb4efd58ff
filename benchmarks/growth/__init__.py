"""The time of everything that might grow with a run's age, in a run of 10⁶ trained prompts and 10,000 updates.

All servers, roles and commands are real, and each time is that of a process from its start, its imports included. What
10,000 updates leave behind is made by writing what the moves write, since the moves themselves would take an hour:

- 3,125 checkpoints: their manifests as `complete` puts them, without tensors, which pruning would have removed. The
  last two are saved and all are pruned, so archived, by the product's own functions.
- `metrics.jsonl`: by `MetricsLog`, a line per update. A byte of length per prompt in Redis, as completions leave it.

Redis comes to its state by the real moves: a learner that finds it empty tells it what the checkpoints hold, while the
set is submitted again. That is the figure of a Redis that was lost, and what the others begin from. The starts of a
learner and a worker in a run without a past are measured beside it: they are what a process costs at any age.

    python -m benchmarks.growth [--prompts 1000000] [--updates 10000] [--checkpoints 3125] [--json]
"""


def reward(completions: list[str], **columns: object) -> list[float]:
    """The environment of the run."""
    return [float(len(completion) % 2) for completion in completions]
