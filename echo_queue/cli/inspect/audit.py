"""The command `audit`: the identity with its numbers, and the faults in it."""

from rich.console import Console

from echo_queue.cli.inspect.live.watcher import last_word, monitor
from echo_queue.cli.output import print_json
from echo_queue.config import Config
from echo_queue.errors import ServiceError
from echo_queue.queue import Audit, Monitor
from echo_queue.queue.counts import agreeing, counted


def audit(config: Config, *, as_json: bool) -> int:
    """Prints the identity with its numbers. Returns the exit code, 1 if the identity is broken."""
    found = _found(config)
    if as_json:
        print_json(found)
    else:
        Console(highlight=False, soft_wrap=True).print(sentence(found))
    return 0 if found.ok else 1


def found_or_last(config: Config, queue: Monitor | None) -> Audit | None:
    """Asks the queue, or reads its last answer if the run has ended together with its embedded services.

    None: Redis does not answer (`queue` is None), and there is no last answer.
    """
    if queue is not None:
        return queue.audit()
    end = last_word(config)
    return end.audit if end else None


def _found(config: Config) -> Audit:
    try:
        return monitor(config).audit()
    except ServiceError:
        if last := found_or_last(config, None):
            return last
        raise


def sentence(found: Audit) -> str:
    """Returns the identity with its numbers, and the faults in it."""
    parts = {name: getattr(found, name) for name in ("backlog", "tasks", "replay", "trained", "dead")}
    identity = f"submitted {found.submitted:,} = " + " + ".join(f"{name} {count:,}" for name, count in parts.items())
    if found.ok:
        return f"[green]✓[/] {identity}"
    wrong = []
    if found.difference:
        wrong.append(f"{counted(abs(found.difference), 'prompt')} {'missing' if found.difference > 0 else 'too many'}")
    if found.misplaced:
        wrong.append(
            f"{counted(abs(found.misplaced), 'open id')} {'without an entry' if found.misplaced > 0 else 'too few'}"
        )
    if found.unlisted:
        wrong.append(
            f"{found.ready:,} ready and {counted(found.in_hand, 'drained group')} of {found.replay:,} in replay"
        )
    leased = counted(found.leased, "task", "is", "are")
    if found.in_flight != found.leased:
        wrong.append(f"{counted(found.in_flight, 'task', 'is', 'are')} noted as leased, but {leased} leased")
    if found.leases != found.leased:
        wrong.append(f"{counted(found.leases, 'lease', 'is', 'are')} to run out, but {leased} leased")
    if found.lost:
        are, them = agreeing(found.lost, "entry is", "entries are"), agreeing(found.lost, "it", "them")
        wrong.append(f"{found.lost:,} {are} missing from a stream, though no move removed {them}")
    if found.forged:
        wrong.append(
            f"{counted(found.forged, 'time')} a worker's Redis user had written what no worker of this project writes"
        )
    return f"[red]✗[/] {identity.replace(' = ', ' ≠ ' if found.difference else ' = ')}\n  {'; '.join(wrong)}"
