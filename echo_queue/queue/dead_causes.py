"""Says of what prompts died, and recognises a run in which nothing can succeed.

A prompt dies after `queue.max_attempts` attempts that failed, and one bad prompt says nothing about the others. If the
first prompts all die before any group is completed, the cause lies in what they share: the reward function, the model,
the machines. Then the run ends, before it spends the attempts of all others. In a mixture those of each component that
has prompts must have died so: what is broken in one component does not end the others.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from echo_queue.config import component_name
from echo_queue.errors import HopelessError, Problem
from echo_queue.queue.counts import agreeing, counted
from echo_queue.queue.monitor import RunState
from echo_queue.queue.reasons import in_one_line
from echo_queue.queue.types import DeadTask

FIRST_DEAD = 3
"""The number of prompts that die before any group is completed at which the run ends."""
LOOKED_AT = 1000
"""The number of dead tasks whose reasons are read."""
PLACE = re.compile(r"(?<=\bas reward )\d+")
FIX = (
    "fix the cause; `echo-queue run CONFIG` then tries them again by itself; elsewhere restart the workers, which "
    "still run the old code, and then `echo-queue revive CONFIG`"
)
FIX_AT_END = (
    "fix the cause; `echo-queue run CONFIG` then tries them again by itself; elsewhere `echo-queue revive CONFIG`, and "
    "then start the learner and the workers again"
)


@dataclass(frozen=True)
class DeadCause:
    """A reason of which `tasks` tasks died, and the id of one of them."""

    reason: str
    tasks: int
    example: str


def causes(dead: Sequence[DeadTask]) -> list[DeadCause]:
    """Returns the reasons of dead tasks, the commonest first. Those that differ only in a sample's place are one."""
    found: dict[str, list[DeadCause]] = defaultdict(list)
    for task in dead:
        reason = in_one_line(task.reason)
        found[PLACE.sub("", reason)].append(DeadCause(reason, 1, task.id))
    return sorted(
        (DeadCause(same[0].reason, len(same), same[0].example) for same in found.values()),
        key=lambda cause: -cause.tasks,
    )


def check_first_groups(run: RunState) -> bool:
    """Returns whether any group has been completed, after which there is no need to ask again.

    Raises `HopelessError` if prompts have died instead.
    """
    status = run.figures()
    if status.counts.get("completed", 0) or status.trained:
        return True
    died = [task for task in run.dead(LOOKED_AT) if task.worker] if status.dead >= FIRST_DEAD else []
    components = [one.name for one in status.components if one.admitted or one.backlog or one.missing]
    by_component = Counter(component_name(task.id.partition("/")[0]) for task in died)
    if len(died) >= FIRST_DEAD and all(by_component[name] >= FIRST_DEAD for name in components):
        raise HopelessError(hopeless(died))
    return False


def check_end(run: RunState) -> None:
    """Raises `HopelessError` if a run that is finished has dead prompts."""
    status = run.figures()
    if found := causes(run.dead(LOOKED_AT)):
        are = agreeing(status.dead, "is", "are")
        of = f"{status.dead:,} of {counted(status.submitted, 'prompt')} died and {are} not in the model"
        raise HopelessError(Problem("run", f"{of}. {_told(found[0])}", FIX_AT_END))


def hopeless(died: Sequence[DeadTask]) -> Problem:
    """Returns the problem of a run whose first prompts died."""
    what = f"the first {len(died)} prompts died and no group was completed. {_told(causes(died)[0])}"
    return Problem("run", what, FIX)


def _told(commonest: DeadCause) -> str:
    return f"The commonest reason, {commonest.tasks}× (for example {commonest.example}): {commonest.reason}"
