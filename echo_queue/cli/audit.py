"""The commands `audit`, which checks the identity, and `bury` and `revive`, which give tasks up and take them back."""

from dataclasses import asdict

from rich.console import Console

from echo_queue.cli.live.watcher import monitor
from echo_queue.cli.output import print_json
from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.queue import Audit, Operator
from echo_queue.reporting import results

REVIVE_MAX = 10_000


def audit(config: Config, *, as_json: bool) -> int:
    """Prints the identity with its numbers. Returns the exit code, 1 if the identity is broken."""
    found = monitor(config).audit()
    if as_json:
        print_json(asdict(found) | {"difference": found.difference, "misplaced": found.misplaced, "ok": found.ok})
    else:
        Console(highlight=False, soft_wrap=True).print(sentence(found))
    return 0 if found.ok else 1


def sentence(found: Audit) -> str:
    """Returns the identity with its numbers, and the faults in it."""
    parts = {name: getattr(found, name) for name in ("backlog", "tasks", "replay", "trained", "dead")}
    identity = f"submitted {found.submitted:,} = " + " + ".join(f"{name} {count:,}" for name, count in parts.items())
    if found.ok:
        return f"[green]✓[/] {identity}"
    wrong = []
    if found.difference:
        wrong.append(f"{abs(found.difference):,} prompts {'missing' if found.difference > 0 else 'too many'}")
    if found.misplaced:
        wrong.append(f"{abs(found.misplaced):,} open ids {'without an entry' if found.misplaced > 0 else 'too few'}")
    if found.in_flight != found.leased:
        wrong.append(f"{found.in_flight:,} tasks are noted as leased, but {found.leased:,} are leased")
    if found.lost:
        wrong.append(f"{found.lost:,} entries are missing from a stream, though no move removed them")
    return f"[red]✗[/] {identity.replace(' = ', ' ≠ ' if found.difference else ' = ')}\n  {'; '.join(wrong)}"


def bury(config: Config, task: str, reason: str) -> None:
    """Gives a task up. Raises `EchoQueueError` for one that cannot be given up now."""
    if not Operator.connect(config, connect_store(config, "learner")).bury(task, reason):
        what = "cannot be buried: it is trained, dead, at the learner, or was never admitted"
        raise EchoQueueError(Problem(task, what, "see `echo-queue status` for the tasks that there are"))
    Console(highlight=False).print(f"{task} is dead: {reason}")


def revive(config: Config, tasks: list[str]) -> None:
    """Revives the named dead tasks, or all of them if none is named."""
    operator = Operator.connect(config)
    named = tasks or [task.id for task in operator.dead(REVIVE_MAX)]
    if named:
        results.reopen(config)
    count = operator.revive(named)
    Console(highlight=False).print(f"{count:,} of {len(named):,} dead tasks revived")
