"""Visits every state of the small model and tells the shortest way to a broken promise.

    python -m tests.faults.protocol_model.search [--large]

- Safety: in each state every task is in exactly one place, nothing was trained beyond S or on what abandoned weights
  made, and the surviving checkpoints hold no task twice.
- Liveness: from each state, if nothing more goes wrong, a state can be reached in which all is trained.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.faults.protocol_model.model import RULES, Protocol, begin, broken, drained, without
from tests.faults.protocol_model.steps import steps

INSTANCES = (
    Protocol(takeover=False),
    Protocol(s=1, takeover=False),
    Protocol(workers=1),
    Protocol(takeover=False, partials=True),
)
"""The instances that the tests search as a whole."""
LARGE = (Protocol(s=1, workers=1), Protocol(), Protocol(s=1))
"""Takeovers in larger instances: minutes."""
STUCK = "eventual drain: from here not everything can be trained"


@dataclass(frozen=True)
class Verdict:
    """`broken`: the promise, empty if all hold; `trace`: the shortest way there, one step a line."""

    states: int
    broken: str
    trace: tuple[str, ...]


def search(protocol: Protocol) -> Verdict:
    """Breadth first, so that the first broken state is a nearest one."""
    states = [begin(protocol)]
    number = {states[0]: 0}
    came: list[tuple[int, str]] = [(0, "")]
    before: list[list[int]] = [[]]
    for at, state in enumerate(states):  # grows as we go
        for step in steps(protocol, state):
            known = number.setdefault(step.after, len(states))
            if known == len(states):
                states.append(step.after)
                came.append((at, step.what))
                before.append([])
                if promise := broken(protocol, step.after):
                    return Verdict(len(states), promise, _trace(came, known))
            if not step.fault:
                before[known].append(at)
    can = _reaching({at for at, state in enumerate(states) if drained(protocol, state)}, before)
    stuck = next((at for at in range(len(states)) if at not in can), None)
    return Verdict(len(states), "", ()) if stuck is None else Verdict(len(states), STUCK, _trace(came, stuck))


def smallest(protocol: Protocol) -> Verdict:
    """Returns the verdict on the smallest instance in which a promise breaks, with one fault at most."""
    for tasks in range(1, len(protocol.tasks) + 1):
        for workers in range(1, protocol.workers + 1):
            verdict = search(replace(protocol, tasks=protocol.tasks[:tasks], workers=workers))
            if verdict.broken:
                return verdict
    return verdict


def _reaching(goal: set[int], before: list[list[int]]) -> set[int]:
    """The states from which one of `goal` can be reached."""
    found, edge = set(goal), list(goal)
    while edge:
        new = [at for at in before[edge.pop()] if at not in found]
        found.update(new)
        edge += new
    return found


def _trace(came: list[tuple[int, str]], at: int) -> tuple[str, ...]:
    told = []
    while at:
        at, what = came[at]
        told.append(what)
    return tuple(reversed(told))


def main() -> None:
    for protocol in INSTANCES + LARGE * ("--large" in sys.argv):
        size = f"{len(protocol.tasks)} tasks × {protocol.workers} workers × 1 learner × {protocol.faults} fault"
        more = ("" if protocol.takeover else ", no takeover") + (", partial rollouts" if protocol.partials else "")
        _tell(f"S = {protocol.s}, {size}{more}", protocol, search)
    for rule in RULES:
        _tell(f"without {rule.replace('_', ' ')}", without(rule), smallest)


def _tell(name: str, protocol: Protocol, how: Callable[[Protocol], Verdict]) -> None:
    began = time.monotonic()
    verdict = how(protocol)
    promise = f"breaks {verdict.broken}" if verdict.broken else "keeps every promise"
    print(f"{name}: {verdict.states} states in {time.monotonic() - began:.1f} s; {promise}")
    for line in verdict.trace:
        print(f"    {line}")


if __name__ == "__main__":
    main()
