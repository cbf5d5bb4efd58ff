"""The end of `echo-queue run`: what is kept of it for those who ask later, and what is printed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from echo_queue.cli.inspect.audit import sentence
from echo_queue.cli.inspect.live.view import rewards
from echo_queue.cli.inspect.live.watcher import monitor
from echo_queue.cli.inspect.show import newest_answers
from echo_queue.config import Config
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.errors import AGAIN, DONE, HOPELESS, EchoQueueError
from echo_queue.evaluation.results import curves
from echo_queue.launch.problem_output import WARNING, print_problems, print_wrapped
from echo_queue.models.exported import BEST, EXPORTS
from echo_queue.queue import Audit, Status
from echo_queue.queue.counts import agreeing, counted, duration, short
from echo_queue.queue.dead_causes import LOOKED_AT, DeadCause, causes
from echo_queue.reporting import metrics, outcome, results
from echo_queue.reporting.evaluation_record import EvaluationRecord
from echo_queue.submission.configured_sets import trained_sets
from echo_queue.submission.declaration import changed_source, left_as_it_is

REASONS = 3
"""The number of reasons that the end of a run names."""
INDENT, INDENT_OF_INDENTED = 2, 6
"""The columns at which a wrapped line of the result goes on."""


class End(NamedTuple):
    """The queue's answers at the end of a run. `dead`: why prompts died, the commonest reason first; `sets`: the digest
    of each set's prompts."""

    audit: Audit
    status: Status
    dead: Sequence[DeadCause]
    sets: Mapping[str, str]

    @classmethod
    def of(cls, config: Config) -> Self:
        queue = monitor(config)
        return cls(queue.audit(), queue.status(), causes(queue.dead(LOOKED_AT)), queue.digests())

    def left_by(self, max_updates: int) -> int:
        """Returns the number of prompts that nobody has trained because this limit ended the run (0: none did)."""
        reached = 0 < max_updates <= self.status.learner.number
        return self.audit.submitted - self.audit.trained - self.audit.dead if reached else 0


def keep_answers(config: Config) -> None:
    """Keeps what the queue says of a run that ends before its end, if it answers, for those who ask later."""
    with suppress(EchoQueueError, OSError):
        end = End.of(config)
        updates = metrics.summarise(metrics.read(config.run.dir / "metrics.jsonl")).updates
        outcome.write(config, updates, end.audit, end.status, dead=end.dead, sets=end.sets, early=True)


def keep_latest_answers(config: Config) -> None:
    """Does so where embedded services end whose roles were started one by one, and no `run` has kept its own."""
    with suppress(OSError):
        end = outcome.read(config)
        if config.redis.url == EMBEDDED and (end is None or end.early):
            keep_answers(config)


def conclude(config: Config, end: End, path: Path) -> int:
    """Writes the report and the outcome, and prints the result of the run. Returns the exit code."""
    found = end.audit
    updates = metrics.read(config.run.dir / "metrics.jsonl")
    page = results.write(config, updates, audit=found, answers=newest_answers(config))
    console = Console(highlight=False)
    summary = metrics.summarise(updates)
    outcome.write(config, summary.updates, found, end.status, dead=end.dead, sets=end.sets)
    console.print()
    for line in _result(config, end, summary, path):
        print_wrapped(console, Text.from_markup(line), INDENT_OF_INDENTED if line.startswith(" ") else INDENT)
    _print_paths(console, config, page)
    return AGAIN if not found.ok else HOPELESS if found.dead else DONE


def _result(config: Config, end: End, summary: metrics.Summary, path: Path) -> Iterator[str]:
    """Yields the lines of the result."""
    name = escape(config.run.name)
    if summary.updates:
        yield f"[bold]{name}[/]: reward [bold green]{rewards(summary)}[/]"
        yield _figures_line(config, summary)
    else:
        yield f"[bold]{name}[/]: [red]nothing was trained[/]; the model is the base model"
    yield from (f"{escape(component)}: {one.figure}" for component, one in summary.components.items())
    yield from _evaluation_lines(config)
    yield sentence(end.audit)
    if end.audit.dead:
        yield from _dead_lines(end, path)
    if end.left_by(config.learner.max_updates):
        yield from _left_lines(config, end, path)
    told = metrics.warnings(summary, over=True)
    yield from (f"[yellow]![/] {warning}" for warning in told)
    if told and summary.updates in (summary.flat_updates, summary.cut_updates):
        anew = f"mend that and {_from_scratch(config)}; `echo-queue run {path}` begins anew"
        yield f"    → {escape(anew)}"
    yield _weights_line(summary)


def _figures_line(config: Config, summary: metrics.Summary) -> str:
    return (
        f"whole run: {counted(summary.updates, 'update')}, {duration(summary.seconds)} from the first to the last; "
        f"mean lag {summary.mean_lag:.2f} (of tokens {summary.token_lag:.2f}, largest {summary.max_lag}, bound "
        f"{config.staleness.s}); learner idle {summary.idle_share:.0%}"
    )


def _evaluation_lines(config: Config) -> Iterator[str]:
    """Yields the first and the last result of each evaluation."""
    for evaluation, curve in sorted(curves(EvaluationRecord(config.run.dir).read()).items()):
        if answered := [result for result in curve if result.mean is not None and not result.given_up]:
            first, last = answered[0], answered[-1]
            before = f"{first.mean:.2f} at version {first.version} → " if len(answered) > 1 else ""
            yield f"{escape(evaluation)}: {before}[bold]{escape(last.figure)}[/] at version {last.version}"


def _dead_lines(end: End, path: Path) -> Iterator[str]:
    """Yields how many prompts died, of what, and what to do."""
    yield f"[red]✗[/] {counted(end.audit.dead, 'prompt', 'died and is', 'died and are')} not in the model:"
    for cause in end.dead[:REASONS]:
        yield f"    {cause.tasks:,}× {escape(cause.reason)} (for example {escape(cause.example)})"
    if more := len(end.dead[REASONS:]):
        them = agreeing(more, "it", "them")
        yield f"    {counted(more, 'more reason')}: redis-cli shows {them}, docs/operations.md says how"
    them = agreeing(end.audit.dead, "it", "them")
    yield f"    → fix that; `echo-queue run {escape(str(path))}` then tries {them} again"


def _left_lines(config: Config, end: End, path: Path) -> Iterator[str]:
    """Yields how many prompts the limit of updates has left, and what to do."""
    limit = config.learner.max_updates
    are = counted(end.left_by(limit), "prompt", "is", "are")
    them = agreeing(end.left_by(limit), "it", "them")
    yield f"[yellow]![/] {are} not trained: learner.max_updates = {limit} ended the run before {them}"
    yield f"    → with a higher one, or 0, `echo-queue run {escape(str(path))}` goes on"


def _weights_line(summary: metrics.Summary) -> str:
    stored = summary.anchor_bytes + summary.delta_bytes
    return (
        f"weights: {short(stored)}B stored, {summary.delta_bytes / max(stored, 1):.0%} as differences; "
        f"workers read {short(summary.store_bytes)}B from the store, {short(summary.peer_bytes)}B from one another"
    )


def _print_paths(console: Console, config: Config, page: Path) -> None:
    folder = config.run.dir
    best = folder / EXPORTS / BEST
    bests = [("best", best.resolve())] if best.exists() else []
    for what, path in ("model", folder / "model"), *bests, ("report", page), ("metrics", folder / "metrics.jsonl"):
        console.print(f"  {what:7}  {path}", markup=False, soft_wrap=True)


def print_finished(config: Config, end: outcome.Outcome) -> None:
    console = Console(highlight=False, soft_wrap=True)
    ended = f"{counted(end.updates, 'update')}, {end.ended:%Y-%m-%d %H:%M} UTC"
    console.print(f"[bold]{config.run.name}[/] is finished: {ended}. Another configuration changes nothing in it")
    _print_paths(console, config, config.run.dir / "report.html")
    console.print(f"  To run it again from scratch, {_from_scratch(config)}.", markup=False)
    for prompts in trained_sets(config):
        if (digest := end.sets.get(prompts.set)) and changed_source(config, prompts, digest):
            print_problems([left_as_it_is(config, prompts, "it has changed since")], sign=WARNING)


def _from_scratch(config: Config) -> str:
    """Returns what to do before a run begins anew."""
    embedded = EMBEDDED == config.redis.url == config.store.url
    return f"remove {config.run.dir}" if embedded else "name another run.name and run.dir"


def print_stopping(console: Console) -> None:
    what = "stopping: the learner saves a checkpoint and workers hand their tasks back; Ctrl-C again kills them"
    console.print(what, highlight=False)


def print_stopped(path: Path) -> None:
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"stopped; `echo-queue run {path}` continues it")
