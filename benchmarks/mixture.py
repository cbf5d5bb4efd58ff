"""Whether a mixture keeps to its weights, and learns all that is in it, while its learner is killed.

    python -m benchmarks.mixture [--config configs/mixture.toml] [--json]

One run of the configuration from the model that `init` makes, whose learner gets SIGKILL in the middle. Of the groups
that were trained, the share of each component is compared with its weight in every window of 20 updates, across that
restart as well; and each component's reward at first with its last one.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs import echo_queue
from benchmarks.verdict import conclude
from echo_queue.config.loading import load
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.metrics import UpdateMetrics, summarise
from tests.pipeline.supervised_run import SupervisedRun

CONFIG = Path("configs/mixture.toml")
WINDOW = 20
MOST_POINTS = 2.0
"""The share of a component in a window is at most so many percentage points from its weight."""
LEAST_GAIN = 0.1
"""Each component's reward rises by so much at least."""


@dataclass(frozen=True)
class Share:
    """A component: its share of all groups and by its weight, the largest distance of the two in a window of updates,
    in points, and the mean rewards of its first and last updates."""

    component: str
    share: float
    by_weight: float
    worst_points: float
    reward_first: float
    reward_last: float


@dataclass(frozen=True)
class Figures:
    updates: int
    learners: int
    """How many learners made the updates: one more than were killed."""
    exit_code: int
    shares: Sequence[Share]


def worst_points(updates: Sequence[Mapping[str, ComponentFigures]], component: str, share: float) -> float:
    """Returns by how many points, at most, the share of a component was another one in `WINDOW` updates in a row."""
    worst = 0.0
    for first in range(max(1, len(updates) - WINDOW + 1)):
        window = updates[first : first + WINDOW]
        groups = sum(one.groups for update in window for one in update.values())
        of_it = sum(update[component].groups for update in window if component in update)
        worst = max(worst, 100 * abs(of_it / groups - share))
    return worst


def shares(updates: Sequence[UpdateMetrics], weights: Mapping[str, float]) -> list[Share]:
    """Returns the figures of each component. Raises `SystemExit` for one that was never trained."""
    trained, found = summarise(updates).components, []
    for name, weight in weights.items():
        if name not in trained:
            raise SystemExit(f"component {name} was not trained")
        one, by_weight = trained[name], weight / sum(weights.values())
        worst = worst_points([update.components for update in updates], name, by_weight)
        found.append(Share(name, one.share, by_weight, worst, one.reward_first, one.reward_last))
    return found


def targets(figures: Figures) -> dict[str, bool]:
    """Returns the promises, and whether each is kept."""
    worst = max(one.worst_points for one in figures.shares)
    learnt = all(one.reward_last - one.reward_first >= LEAST_GAIN for one in figures.shares)
    return {
        f"in every {WINDOW} updates each share is within {MOST_POINTS:g} points of its weight": worst <= MOST_POINTS,
        f"the reward of each component rises by {LEAST_GAIN} at least": learnt,
        "a learner was killed, and the run ended with every prompt trained": (
            figures.learners > 1 and figures.exit_code == 0
        ),
    }


def measure(path: Path) -> Figures:
    """Runs the configuration, and kills its learner once half of the prompts are trained."""
    with tempfile.TemporaryDirectory(prefix="mixture-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        echo_queue("init-model", path, folder / "made", {})
        here = {"PYTHONPATH": str(Path.cwd())}  # for the code of one's own that a configuration names
        run = SupervisedRun(folder, folder / "made" / "base", path.absolute(), **here)
        try:
            run.until(lambda run: (status := run.status()) is not None and 2 * status.trained >= status.submitted > 0)
            run.kill("learner")
            code = run.ends()
        finally:
            run.stop()
        updates = run.updates()
    weights = {component.name: component.weight for component in run.config.mixture}
    return Figures(len(updates), len({one.lineage for one in updates}), code, shares(updates, weights))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not load(options.config).mixture:
        raise SystemExit(f"{options.config} has no mixture")
    figures = measure(options.config)
    print(f"{figures.updates} updates of {figures.learners} learners, exit code {figures.exit_code}")
    print(f"{'component':16} {'share':>7} {'weight':>7} {'worst':>12} {'reward':>14}")
    for one in figures.shares:
        reward = f"{one.reward_first:.2f} → {one.reward_last:.2f}"
        print(f"{one.component:16} {one.share:7.1%} {one.by_weight:7.1%} {one.worst_points:5.2f} points {reward:>14}")
    return conclude(figures, targets(figures), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
