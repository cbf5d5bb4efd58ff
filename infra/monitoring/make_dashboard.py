"""Makes the dashboard for Grafana, whose panels are told by the table of figures.

python -m infra.monitoring.make_dashboard > infra/monitoring/dashboard.json
"""

import re
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from string import ascii_uppercase
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from echo_queue.reporting.figures.table import FIGURES

MEANINGS = {figure.name: figure.meaning for figure in FIGURES}
SOURCE = DataSourceRef("prometheus", "${source}")
RUN = 'run=~"$run"'
WIDTH, HEIGHT = 8, 8
"""Three panels stand beside one another: the page is 24 wide."""


class Panel(NamedTuple):
    """A panel. `queries`: PromQL by the legend; `$` in it stands for the label of the run. `unit`: Grafana's word."""

    title: str
    unit: str
    queries: Mapping[str, str]


ROWS: Mapping[str, Sequence[Panel]] = {
    "Does it go on?": (
        Panel("Reward", "short", {"update": "echo_queue_reward_mean{$}", "recent": "echo_queue_reward_recent_mean{$}"}),
        Panel(
            "Version",
            "short",
            {"learner": "echo_queue_learner_version{$}", "published": "echo_queue_published_version{$}"},
        ),
        Panel(
            "Who is heard",
            "s",
            {"learner silent": "echo_queue_learner_silent_seconds{$}"},
        ),
        Panel("Held-out score", "short", {"{{evaluation}}": "echo_queue_evaluation_score{$}"}),
        Panel("Identity (1: kept)", "short", {"identity": "echo_queue_identity_ok{$}", "Redis": "echo_queue_up{$}"}),
        Panel("Dead by cause", "short", {"{{cause}}": "echo_queue_dead_groups{$}"}),
    ),
    "Queue": (
        Panel("Groups by place", "short", {"{{place}}": 'echo_queue_groups{$, place!~"backlog|trained"}'}),
        Panel("Backlog and trained", "short", {"{{place}}": 'echo_queue_groups{$, place=~"backlog|trained"}'}),
        Panel(
            "Completed, and sent back, per second",
            "ops",
            {
                "{{event}}": 'rate(echo_queue_events_total{$, event=~"completed|expired|failed|late|cancelled"}[5m])',
            },
        ),
    ),
    "Learner": (
        Panel(
            "Seconds of an update",
            "s",
            {
                "wait": "echo_queue_update_wait_seconds{$}",
                "train": "echo_queue_update_train_seconds{$}",
                "save": "echo_queue_update_save_seconds{$}",
                "broadcast": "echo_queue_broadcast_seconds{$}",
            },
        ),
        Panel("Idle", "percentunit", {"idle": "echo_queue_idle_ratio{$}"}),
        Panel("Trained tokens per second", "short", {"tokens/s": "echo_queue_trained_tokens_per_second{$}"}),
        Panel(
            "Lag and S, in updates",
            "short",
            {
                "mean": "echo_queue_lag_mean_updates{$}",
                "largest": "echo_queue_lag_max_updates{$}",
                "S": "echo_queue_staleness_bound_updates{$}",
            },
        ),
        Panel("Entropy", "short", {"nats": "echo_queue_entropy_nats{$}"}),
        Panel(
            "Off-policy",
            "short",
            {
                "KL to behaviour": "echo_queue_kl_behaviour_nats{$}",
                "clipped": "echo_queue_clip_ratio{$}",
                "effective samples": "echo_queue_effective_sample_ratio{$}",
            },
        ),
    ),
    "Workers": (
        Panel("Workers by state", "short", {"{{state}}": "sum by (run, state) (echo_queue_workers{$})"}),
        Panel(
            "Machines by pool, and wanted",
            "short",
            {"{{pool}}": "echo_queue_machines{$}", "{{pool}} wanted": "echo_queue_machines_wanted{$}"},
        ),
        Panel("Generated tokens per second", "short", {"{{pool}}": "echo_queue_generated_tokens_per_second{$}"}),
        Panel(
            "Generation of a group", "s", {"{{pool}}, {{percentile}} of 100": "echo_queue_group_generation_seconds{$}"}
        ),
        Panel("Arrival of weights", "s", {"{{pool}}, {{percentile}} of 100": "echo_queue_weight_arrival_seconds{$}"}),
        Panel("Departures in an hour", "short", {"{{cause}}": "increase(echo_queue_worker_departures_total{$}[1h])"}),
    ),
    "Mixture": (
        Panel("Reward by component", "short", {"{{component}}": "echo_queue_component_reward{$}"}),
        Panel("Admitted per second", "ops", {"{{component}}": "rate(echo_queue_component_admitted_total{$}[5m])"}),
        Panel("Cut off by component", "percentunit", {"{{component}}": "echo_queue_component_truncated_ratio{$}"}),
    ),
}


def made() -> str:
    """Returns the dashboard as JSON, with a line break at its end."""
    board = (
        dashboard.Dashboard("echo-queue")
        .uid("echo-queue")
        .tags(["echo-queue"])
        .refresh("30s")
        .time("now-6h", "now")
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus").label("Prometheus"))
        .with_variable(
            dashboard.QueryVariable("run")
            .datasource(SOURCE)
            .query("label_values(echo_queue_up, run)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
        )
    )
    ids = count(1)
    for title, panels in ROWS.items():
        board.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            board.with_panel(_panel(panel).id(next(ids)))
    return f"{JSONEncoder(sort_keys=True, indent=2).encode(board.build())}\n"


def figures_of(query: str) -> list[str]:
    """Returns the names of the figures in a query, in its order."""
    return list(dict.fromkeys(re.findall(r"\becho_queue_\w+", query)))


def _panel(panel: Panel) -> timeseries.Panel:
    names = figures_of(" ".join(panel.queries.values()))
    drawn = (
        timeseries.Panel()
        .title(panel.title)
        .description("\n\n".join(f"{name}: {MEANINGS[name]}" for name in names))
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(WIDTH)
        .height(HEIGHT)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    for letter, (legend, query) in zip(ascii_uppercase, panel.queries.items(), strict=False):
        drawn.with_target(
            prometheus.Dataquery()
            .expr(query.replace("$", RUN, 1))
            .legend_format(f"{{{{run}}}} {legend}")
            .ref_id(letter)
        )
    return drawn


if __name__ == "__main__":
    sys.stdout.write(made())
