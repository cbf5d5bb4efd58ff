"""The view of a run: a picture on a terminal, one line elsewhere.

All functions are pure functions of a `RunView`; `echo_queue.cli.inspect.live.watcher` reads Redis and the metrics.
"""

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Self, get_args

from rich.box import ROUNDED
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from echo_queue.evaluation.results import EvaluationResult
from echo_queue.launch.supervisor import RoleState
from echo_queue.queue.counts import counted, short
from echo_queue.queue.dead_causes import DeadCause
from echo_queue.queue.pool_status import pools_of
from echo_queue.queue.types import ComponentStatus, Departure, FailedSet, Heartbeat, Status, WorkerStatus
from echo_queue.records import BASE, Version
from echo_queue.records.validation import CAUSES
from echo_queue.reporting.components import ComponentSummary
from echo_queue.reporting.metrics import Summary, warnings

UNKNOWN = "–"
"""Stands for what is not known, which is never shown as 0."""
REASONS = 3
"""The number of reasons of deaths, and of failed sets, that are shown."""
COPIED_COLUMNS = 76
"""The width of lines that are to be copied."""
SPARK = 34
"""The width of the rewards' bars: the line fits 80 columns."""
SIDE_BY_SIDE = 72
"""The columns that three panels need beside each other."""
BLOCKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
SILENT_MS = 5_000
"""A worker without a heartbeat for this long is marked."""
SLOW_SCORING_S = 0.1
"""Scoring that takes so long a call is told; a faster one holds nothing up."""
STATE_COLOURS = {
    "generating": "green",
    "scoring": "cyan",
    "fetching": "yellow",
    "quarantined": "red",
    "suspended": "red",
    "waiting": "dim",
}
PHASE_COLOURS = {"failed": "red", **dict.fromkeys(("stopping", "stopped", "ended", "no answer"), "yellow")}
"""The colours of phases in which a run does not go on, by their words before a colon."""
DIGITS = 20
"""Numbers in workers' names are compared as numbers up to this many digits."""


@dataclass(frozen=True)
class RunView:
    """The state of a run at one moment. `status` is None while Redis does not answer.

    `trouble` says why it does not, and which roles run another release.
    """

    name: str
    phase: str
    elapsed_s: float | None
    """None: not known."""
    s: int
    summary: Summary
    """The summary of the whole run."""
    recent: Summary
    """The summary of its last updates."""
    rewards: tuple[float, ...]
    status: Status | None
    trouble: str
    roles: tuple[RoleState, ...]
    redis_cli: str
    detail: str = ""
    """The last line of the phase's role."""
    held_up: tuple[str, ...] = ()
    """The causes that keep the run from moving (`echo_queue.queue.diagnosis`)."""
    dead: tuple[DeadCause, ...] = ()
    """The reasons of which prompts died, the commonest first."""
    failed: tuple[FailedSet, ...] = ()
    """The sets of which chunks cannot be read."""
    evaluations: tuple[EvaluationResult, ...] = ()
    """The newest result of each evaluation."""
    over: bool = False
    """The run has ended: its figures are those of the whole run, as in its summary and its report."""

    @property
    def measured(self) -> Summary:
        """Returns the figures of the learner: of the last updates, or of the whole run once it is over."""
        return self.summary if self.over else self.recent

    @property
    def span(self) -> str:
        """Returns of which updates the figures `measured` are."""
        whole = self.over or self.recent.updates == self.summary.updates
        return "whole run" if whole else f"last {counted(self.recent.updates, 'update')}"

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings(self.summary, over=self.over)

    def ended(self, roles: Collection[str]) -> Self:
        """Returns the view once the command that ran these roles has ended them, and so ends itself.

        Nothing is held up any more. A heartbeat that one of the roles has left behind is not that of a living worker.
        """
        status = self.status
        if status:
            ended = (replace(one, heartbeat=None) if one.name in roles else one for one in status.workers)
            status = replace(status, workers=tuple(ended))
        done = tuple(role for role in self.roles if role.done)
        return replace(self, status=status, roles=done, held_up=(), over=True)


def draw(picture: RunView) -> RenderableType:
    """Returns the picture for a terminal. One of less than 80 columns breaks some lines and table cells."""
    parts: list[RenderableType] = [_head(picture), _reward(picture)]
    parts += [_sentence(sentence, "") for sentence in evaluations(picture)]
    parts.append(_panels(picture))
    parts += [_mixture(shown)] if (shown := _components(picture)) else []
    if picture.status and (listed := _listed(picture.status.workers)):
        parts.append(_workers(listed, picture.status))
        parts += [_weights(heard, picture.recent.t_bcast_s)] if (heard := _heard(listed)) else []
        parts += [_sentence(sentence, "dim") for sentence in _pools(listed)]
    parts += [_roles(picture.roles)] if picture.roles else []
    if picture.trouble:
        parts.append(_sentence(picture.trouble, "yellow"))
    parts += [_sentence(sentence, "dim") for sentence in _gone(picture.status) + _continued(picture.status)]
    parts += [_sentence(f"held up: {sentence}", "yellow") for sentence in picture.held_up]
    parts += [_sentence(sentence, "yellow") for sentence in picture.warnings]
    parts += [_sentence(sentence, "red") for sentence in _losses(picture)]
    if picture.redis_cli:
        parts.append(Text.assemble((" look yourself:\n ", "dim"), (_to_copy(picture.redis_cli), "cyan")))
    return Group(*parts)


def _to_copy(command: str) -> str:
    """Returns a command line in lines of which a shell makes one again: the terminal breaks none of them."""
    return " \\\n ".join(textwrap.wrap(command, COPIED_COLUMNS, break_long_words=False, break_on_hyphens=False))


def line(picture: RunView) -> str:
    """Returns the same in one line, for logs."""
    measured, status = picture.measured, picture.status
    parts = [clock(picture.elapsed_s), picture.phase + (f": {picture.detail}" if picture.detail else "")]
    if picture.summary.updates:
        parts += [
            f"reward {rewards(picture.summary)}",
            f"{picture.span}: lag {measured.mean_lag:.2f} (largest {measured.max_lag})",
            f"idle {measured.idle_share:.0%}",
            f"{short(measured.tokens_per_s)} tokens/s",
        ]
        parts += [f"weights everywhere after {measured.t_bcast_s:.2f} s"] if measured.t_bcast_s else []
    parts += [_component_line(one) for one in _components(picture)]
    parts += evaluations(picture)
    if status and status.learner_came:
        parts.insert(2, f"version {status.learner.number}")
    if status and (status.learner_came or status.submitted):
        parts += [f"{name} {depth:,}" for name, depth in _depths(status).items()]
        parts += [f"not saved yet {unsaved:,}"] if (unsaved := _unsaved(status)) else []
        parts.append(f"workers {sum(worker.heartbeat is not None for worker in status.workers)}")
        parts += _sources(status.workers)
    deaths = {role.name: role.deaths for role in picture.roles if role.deaths}
    parts += [f"{name} restarted {count}×" for name, count in deaths.items()]
    held_up = [f"held up: {'; '.join(picture.held_up)}"] if picture.held_up else []
    parts += _gone(status) + _continued(status)
    troubles = [*filter(None, [picture.trouble, *picture.warnings]), *held_up, *_losses(picture)]
    return "  ".join([*parts, *troubles])


def by_name(workers: Iterable[WorkerStatus]) -> tuple[WorkerStatus, ...]:
    """Returns the workers in the order of their names, and of the numbers in these: worker-2 before worker-10."""

    def key(worker: WorkerStatus) -> tuple[str, str]:
        return re.sub(r"\d+", lambda number: number[0].zfill(DIGITS), worker.name), worker.name

    return tuple(sorted(workers, key=key))


def rewards(summary: Summary) -> str:
    """Returns the mean rewards of the run's first and last updates, and how many updates those are."""
    if summary.updates < 2:
        return f"{summary.reward_last:.2f}"
    over = f"means of {counted(summary.reward_updates, 'update')}"
    return f"{summary.reward_first:.2f} → {summary.reward_last:.2f} ({over})"


def evaluations(picture: RunView) -> list[str]:
    """Returns how far the round of evaluation is that is under way; between rounds, what the last ones found out."""
    if picture.status and (under_way := picture.status.evaluation):
        answered = f"{under_way.scored:,} of {counted(under_way.prompts, 'prompt')} answered"
        kept = f", {counted(under_way.keepers, 'keeper')}" if under_way.keepers else ""
        return [f"{', '.join(under_way.sets)} at {under_way.version}: {answered}{kept}"]
    return [f"{one.evaluation} at {one.version}: {one.figure}" for one in picture.evaluations]


def spark(values: Sequence[float], width: int) -> str:
    """Returns bars for the means of `width` equal parts of `values`, scaled from 0 to the largest of them and 1."""
    count = min(width, len(values))
    means = [fmean(values[i * len(values) // count : (i + 1) * len(values) // count]) for i in range(count)]
    top = max(1.0, *means, 0.0)
    return "".join(BLOCKS[min(7, max(0, int(mean / top * 8)))] for mean in means)


def bar(share: float, width: int) -> str:
    """Returns a bar of `width` characters, precise to an eighth of a character."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[part] if part else "")).ljust(width)


def clock(seconds: float | None) -> str:
    """Formats a duration: `0:42`, `3:07`, `5:02:11`; a dash if it is not known."""
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _losses(picture: RunView) -> Iterator[str]:
    """Yields what the run has lost: bad groups, dead prompts with their commonest reasons, and chunks of sets."""
    yield from _bad_groups(picture.status)
    for cause in picture.dead[:REASONS]:
        yield f"{counted(cause.tasks, 'prompt')} died: {cause.reason} (for example {cause.example})"
    for one in picture.failed[:REASONS]:
        if not one.chunks:
            yield f"set {one.name} was not submitted: {one.reason}"
            continue
        yield f"set {one.name}: {one.failed:,} of {counted(one.chunks, 'chunk')} cannot be read: {one.reason}"


def _bad_groups(status: Status | None) -> list[str]:
    """Returns the number of bad groups since the run began, by cause, and of those that the store has lost; each
    dead task names its sender."""
    counts = status.counts if status else {}
    causes = [f"{cause} {counts[name]:,}" for cause in CAUSES if (name := f"bad_{cause}") in counts]
    buried = [f"bad groups: {', '.join(causes)}"] if causes else []
    missing = counts.get("missing", 0)
    return buried + ([f"{counted(missing, 'group')} gone from the store and generated again"] if missing else [])


def _continued(status: Status | None) -> list[str]:
    """Returns how many tokens of partial rollouts were continued and discarded, and the number of bad ones."""
    counts = status.counts if status else {}
    fates = ("continued", "discarded")
    told = [f"{counted(counts[name], 'token')} {fate}" for fate in fates if (name := f"tokens_{fate}") in counts]
    bad = [f"{counts['bad_partial']:,} bad"] if "bad_partial" in counts else []
    return [f"partial rollouts: {', '.join(told + bad)}"] if told or bad else []


def _gone(status: Status | None) -> list[str]:
    """Returns how many workers have left since the run began, and why."""
    counts = status.counts if status else {}
    left = [f"{counts[name]:,} {why}" for why in get_args(Departure) if (name := f"left_{why}") in counts]
    return [f"workers that left: {', '.join(left)}"] if left else []


def _head(picture: RunView) -> RenderableType:
    table = Table.grid(expand=True)
    table.add_column()
    table.add_column(justify="right")
    left = Text.assemble((" echo-queue ", "bold reverse"), ("  " + picture.name, "bold"))
    table.add_row(left, Text.assemble((picture.phase, f"bold {_colour(picture)}"), f"  {clock(picture.elapsed_s)} "))
    return Group(table, _sentence(picture.detail, "dim")) if picture.detail else table


def _colour(picture: RunView) -> str:
    """Returns the colour of the phase: green unless the run has ended, or stopped, with something left undone."""
    if picture.over and picture.status and picture.status.dead:
        return "red"
    return PHASE_COLOURS.get(picture.phase.partition(":")[0], "green")


def _reward(picture: RunView) -> RenderableType:
    if not picture.rewards:
        trained = picture.status.trained + _unsaved(picture.status) if picture.status else 0
        return Text(f"\n reward  {'not known here' if trained else 'not trained yet'}", style="dim")
    figures, *over = rewards(picture.summary).split(" (")
    told = Text.assemble(
        "reward  ",
        (spark(picture.rewards, SPARK), "blue"),
        (f"  {figures}", "bold"),
        (f" ({over[0]}" if over else "", "dim"),
    )
    if len(parts := picture.summary.rewards_last) > 1:
        told.append("\n        " + ", ".join(f"{name} {mean:.2f}" for name, mean in parts.items()), "dim")
    return Padding(told, (1, 0, 0, 1))


def _panels(picture: RunView) -> RenderableType:
    heights = max(8, picture.s + 2 if picture.s < 8 else 7)
    panels = (_queue(picture.status), _lags(picture), _learner(picture))
    return _Row(tuple(_panel(title, body, heights) for title, body in panels))


@dataclass(frozen=True)
class _Row:
    """Panels side by side, or one below the other in a terminal that is too narrow for it."""

    panels: tuple[Panel, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < SIDE_BY_SIDE:
            yield from self.panels
            return
        table = Table.grid(*(Column(ratio=1) for _ in self.panels), expand=True, padding=0)
        table.add_row(*self.panels)
        yield table


def _panel(title: str, body: RenderableType, height: int | None = None) -> Panel:
    """Draws a box of `height` lines; None: of as many as its content has, which may be more than its rows."""
    whole = None if height is None else height + 2
    return Panel(body, title=title, title_align="left", box=ROUNDED, border_style="dim", height=whole)


@dataclass(frozen=True)
class _Component:
    """A component of the mixture, and its share by the weights; None of what is not known of it."""

    name: str
    queued: ComponentStatus | None
    weighed: float | None
    admitted: float | None
    trained: ComponentSummary | None


def _components(picture: RunView) -> list[_Component]:
    """Returns the components of the mixture as the queue has them, or else those of which some was trained."""
    trained, status = picture.summary.components, picture.status
    if not (queued := status.components if status and (status.learner_came or status.submitted) else ()):
        return [_Component(name, None, None, None, one) for name, one in trained.items()]
    weights, admitted = sum(one.weight for one in queued), sum(one.admitted for one in queued)
    return [
        _Component(
            one.name, one, one.weight / weights, one.admitted / admitted if admitted else None, trained.get(one.name)
        )
        for one in queued
    ]


def _mixture(components: Sequence[_Component]) -> RenderableType:
    """Draws the shares of each component: by the weights, of what was admitted, and of what was trained."""
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    table.add_column("component", no_wrap=True)
    to_come = any(one.queued and one.queued.missing for one in components)
    for name in ("weight", "admitted", "trained", "reward", "backlog", *(["to come"] if to_come else [])):
        table.add_column(name, justify="right")
    for one in components:
        trained, queued = one.trained, one.queued
        reward = f"{trained.reward_first:.2f} → {trained.reward_last:.2f}" if trained else UNKNOWN
        shares = [_percent(share) for share in (one.weighed, one.admitted, trained.share if trained else None)]
        left = [f"{queued.backlog:,}", f"{queued.missing:,}"] if queued else [UNKNOWN, UNKNOWN]
        table.add_row(one.name, *shares, reward, *left[: 1 + to_come])
    return _panel("mixture", table)


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.1%}"


def _component_line(component: _Component) -> str:
    told = component.name
    if component.trained:
        told += f" {component.trained.figure}"
    if component.queued:
        told += f"{',' if component.trained else ''} backlog {component.queued.backlog:,}"
        told += f" and {component.queued.missing:,} to come" if component.queued.missing else ""
    return told


def _queue(status: Status | None) -> tuple[str, RenderableType]:
    if status is None:
        return "queue", Text("no answer yet", style="dim")
    colours = {"trained": "green", "dead": "red" if status.dead else "dim", "ready": "yellow", "in hand": "yellow"}
    bars = _bars(_depths(status), max(status.submitted, 1), colours)
    unsaved = f"{saved_later:,} not saved yet" if (saved_later := _unsaved(status)) else ""
    return f"queue of {status.submitted:,}", Group(bars, Text(unsaved, style="dim italic"))


def _depths(status: Status) -> dict[str, int]:
    """Returns where the run's prompts are. What is trained counts as such before a checkpoint holds it."""
    unsaved = _unsaved(status)
    return {
        "backlog": status.backlog,
        "tasks": status.tasks + status.retry,
        "ready": status.ready,
        "in hand": status.drained - unsaved,
        "trained": status.trained + unsaved,
        "dead": status.dead,
    }


def _unsaved(status: Status) -> int:
    """Returns how many groups are trained that no checkpoint holds: a learner that dies trains them again."""
    return min(status.uncommitted, status.drained)


def _bars(counts: Mapping[str, int], whole: int, colours: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column()
    for name, count in counts.items():
        table.add_row(name, f"{count:,}", Text(bar(count / whole, 8), style=colours.get(name, "blue")))
    return table


def _lags(picture: RunView) -> tuple[str, RenderableType]:
    lags, total = picture.summary.lags, max(sum(picture.summary.lags.values()), 1)
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column()
    table.add_column(justify="right")
    for name, count in _binned(lags, picture.s):
        share = count / total
        table.add_row(name, Text(bar(share, 12), style="blue"), f"{share:.0%}" if count else Text(UNKNOWN, style="dim"))
    mean = f"whole run: mean {picture.summary.mean_lag:.2f}" if picture.summary.updates else ""
    return f"lag · S = {picture.s}", Group(table, Text(mean, style="dim italic"))


def _binned(lags: Mapping[int, int], s: int) -> list[tuple[str, int]]:
    """Returns one row per lag up to S if there is room for them, otherwise six equal ranges."""
    if s < 8:
        return [(str(lag), lags.get(lag, 0)) for lag in range(s + 1)]
    edges = [round(i * (s + 1) / 6) for i in range(7)]
    ranges = [range(first, last) for first, last in pairwise(edges)]
    return [(f"{r.start}–{r.stop - 1}", sum(lags.get(lag, 0) for lag in r)) for r in ranges]


def _learner(picture: RunView) -> tuple[str, RenderableType]:
    measured, status, known = picture.measured, picture.status, picture.summary.updates > 0
    now, over = (Table.grid(padding=(0, 1)) for _ in range(2))
    for table in (now, over):
        table.add_column(style="dim", min_width=9)
        table.add_column()
    published = str(status.published.version.number) if status and status.published else UNKNOWN
    now.add_row("version", str(status.learner.number) if status and status.learner_came else UNKNOWN)
    now.add_row("published", published + (f", κ = {measured.kappa}" if measured.kappa else ""))
    now.add_row("window", f"{status.window:.1f} updates" if status and status.learner_came else UNKNOWN)
    idle = Text.assemble((bar(measured.idle_share, 8), "yellow"), f" {measured.idle_share:.0%}")
    over.add_row("idle", idle if known else UNKNOWN)
    over.add_row("update", f"{(measured.busy_s + measured.save_s) / measured.updates:.2f} s" if known else UNKNOWN)
    over.add_row("tokens/s", short(measured.tokens_per_s) if known else UNKNOWN)
    over.add_row("sent back", f"{picture.summary.sent_back_share:.1%} of all" if known else UNKNOWN)
    title = f"learner · lineage {status.learner.lineage}" if status and status.learner_came else "learner"
    return title, Group(now, Text(f"{picture.span}:" if known else "", style="dim italic"), over)


def _listed(workers: Iterable[WorkerStatus]) -> tuple[WorkerStatus, ...]:
    """Returns the workers that have a row. One that has left has none, although what it handed back still counts as its
    own until the learner's housekeeper sweeps: the queue knows neither a heartbeat of it nor when it was heard."""
    return tuple(one for one in by_name(workers) if one.heartbeat is not None or one.silent_ms >= 0)


def _heard(workers: Iterable[WorkerStatus]) -> list[tuple[str, Heartbeat]]:
    """Returns the names and heartbeats of the workers that have one."""
    return [(worker.name, worker.heartbeat) for worker in workers if worker.heartbeat is not None]


def _workers(workers: Sequence[WorkerStatus], status: Status) -> RenderableType:
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    table.add_column("worker", no_wrap=True)
    table.add_column("state")
    for name in ("version", "tokens/s", "groups/s", "groups", "heard"):
        table.add_column(name, justify="right")
    for worker in workers:
        table.add_row(*_worker(worker, status))
    return _panel("workers", table)


def _worker(worker: WorkerStatus, status: Status) -> list[str | Text]:
    heartbeat = worker.heartbeat
    heard = f"{worker.silent_ms / 1000:.1f} s ago" if worker.silent_ms >= 0 else UNKNOWN
    if heartbeat is None:
        return [worker.name, Text("gone", style="red"), UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, heard]
    shown = "suspended" if worker.suspended else heartbeat.state
    state = Text(shown, style=STATE_COLOURS.get(shown, ""))
    style = "yellow" if worker.silent_ms > SILENT_MS else "dim"
    rates = [short(heartbeat.tokens_per_s), f"{heartbeat.groups_per_s:.1f}", f"{heartbeat.groups:,}"]
    return [worker.name, state, _version(heartbeat.version, status), *rates, Text(heard, style=style)]


def _version(version: Version, status: Status) -> str:
    """Returns the number of a version alone where its lineage is the learner's, which the learner's panel names."""
    if version == BASE:
        return "base"
    return str(version.number if status.learner_came and version.lineage == status.learner.lineage else version)


def _weights(heard: Sequence[tuple[str, Heartbeat]], t_bcast_s: float) -> RenderableType:
    """Draws each worker's weight bytes by source, and for its last version the time until served and the swap pause."""
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    table.add_column("worker", no_wrap=True)
    for name in ("from store", "from peers", "served after", "pause"):
        table.add_column(name, justify="right")
    for name, heartbeat in heard:
        arrived = f"{heartbeat.arrived_ms / 1000:.2f} s" if heartbeat.arrived_ms >= 0 else UNKNOWN
        table.add_row(
            name, short(heartbeat.store_bytes), short(heartbeat.peer_bytes), arrived, f"{heartbeat.pause_ms:.0f} ms"
        )
    return _panel("weights" + (f" · everywhere after {t_bcast_s:.2f} s" if t_bcast_s else ""), table)


def _pools(workers: Sequence[WorkerStatus]) -> Iterator[str]:
    """Yields each pool's size, speed, times of groups and times until weights arrive."""
    for pool in pools_of(workers):
        size = f"{counted(pool.workers, 'worker')} on {counted(pool.machines, 'machine')}"
        told = [f"{size}, {pool.groups_per_s:.3g} groups/s"]
        if pool.generation.groups:
            told.append(f"a group takes {pool.generation.p50_s:.3g} s, 1% take over {pool.generation.p99_s:.3g} s")
        if pool.scoring_s >= SLOW_SCORING_S:
            told.append(f"scoring takes {pool.scoring_s:.3g} s a call, {counted(pool.unscored, 'sample')} wait for it")
        if pool.judge_calls:
            told.append(f"judges were asked {short(pool.judge_calls)} times, {short(pool.judge_tokens)} tokens")
        if pool.arrival:
            told.append(f"weights arrive in {pool.arrival.p50_s:.2f} s, at 90% in {pool.arrival.p90_s:.2f} s")
        yield f"{f'pool {pool.name}' if pool.name else 'all'}: {'; '.join(told)}"


def _sources(workers: Sequence[WorkerStatus]) -> list[str]:
    """Returns the weight bytes that the living workers have fetched since they started, by source, if there are any."""
    beats = [heartbeat for _, heartbeat in _heard(workers)]
    store, peers = sum(heartbeat.store_bytes for heartbeat in beats), sum(heartbeat.peer_bytes for heartbeat in beats)
    return [f"weights {short(store)}B from the store, {short(peers)}B from peers"] if store + peers else []


def _sentence(text: str, style: str) -> RenderableType:
    """Draws a sentence, whose further lines begin below its first word."""
    return Padding(Text(text, style=style), (0, 0, 0, 1))


def _roles(roles: Sequence[RoleState]) -> RenderableType:
    """Draws each role with its mark; a line ends between two roles, and not within one."""
    return Padding(Columns([_role(role) for role in roles], padding=(0, 3)), (0, 0, 0, 1))


def _role(role: RoleState) -> Text:
    mark, colour = ("✓", "green") if role.done else ("●", "green") if role.alive else ("○", "red")
    restarted = (f" restarted {role.deaths}×" if role.deaths else "", "yellow")
    return Text.assemble((f"{mark} ", colour), (role.name, "dim"), restarted, no_wrap=True)
