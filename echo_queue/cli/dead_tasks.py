"""The commands `bury`, which gives a task up, and `revive`, which takes dead tasks back."""

from rich.console import Console

from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.queue import Operator
from echo_queue.reporting import results

REVIVE_MAX = 10_000


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
