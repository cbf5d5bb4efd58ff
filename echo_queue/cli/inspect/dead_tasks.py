"""The commands for what the run has given up: `bury` and `revive` for tasks, `reinstate` for suspended workers."""

from rich.console import Console

from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.queue import Operator
from echo_queue.queue.counts import counted
from echo_queue.reporting import outcome

AT_ONCE = 100
"""Tasks revived in one call, during which Redis serves nobody else."""


def bury(config: Config, task: str, reason: str) -> None:
    """Gives a task up. Raises `EchoQueueError` for one that cannot be given up now."""
    if not Operator.connect(config, connect_store(config, "learner")).bury(task, reason):
        what = "cannot be buried: it is trained, dead, at the learner, or was never admitted"
        raise EchoQueueError(Problem(task, what, "see `echo-queue status` for the tasks that there are"))
    Console(highlight=False, markup=False).print(f"{task} is dead: {reason}")


def revive(config: Config, tasks: list[str]) -> None:
    """Revives the named tasks, or all that are dead or have failed before if none is named."""
    operator = Operator.connect(config)
    count = _revive(config, operator, tasks) if tasks else revive_all(config, operator)
    of = f" of {counted(len(tasks), 'task')}" if tasks else ""
    Console(highlight=False).print(f"{counted(count, 'task')}{of} revived")


def reinstate(config: Config, workers: list[str]) -> None:
    """Lets suspended workers lease again. Raises `EchoQueueError` if none of these is suspended."""
    count = Operator.connect(config).reinstate(workers)
    if not count:
        fix = "`echo-queue status` shows the workers that are"
        raise EchoQueueError(Problem(", ".join(workers), "not suspended", fix))
    Console(highlight=False).print(f"{counted(count, 'worker')} may lease again")


def revive_all(config: Config, operator: Operator) -> int:
    """Revives all tasks that are dead or of which an attempt has failed: their attempts are counted from zero again.

    The latter would otherwise die of a cause that is mended: workers that were killed leave leases whose last attempt
    has failed. Returns how many tasks there were.
    """
    revived = _revive(config, operator, operator.failing())
    while dead := operator.dead(AT_ONCE):
        revived += _revive(config, operator, [task.id for task in dead])
    return revived


def _revive(config: Config, operator: Operator, tasks: list[str]) -> int:
    outcome.forget(config)
    return sum(operator.revive(tasks[first : first + AT_ONCE]) for first in range(0, len(tasks), AT_ONCE))
