"""The verdict of a check of a service: what must be refused, and what must be said."""

import logging
from dataclasses import dataclass

from echo_queue.errors import Problem, ServiceError

log = logging.getLogger(__name__)
_said: set[Problem] = set()


@dataclass(frozen=True)
class Verdict:
    """The problems of a service. `refusals` lose data; `warnings` weaken a promise, or could not be looked at."""

    refusals: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def enforce(self) -> None:
        """Raises `ServiceError` for the refusals, and logs each warning once per process."""
        if self.refusals:
            raise ServiceError(*self.refusals)
        for problem in self.warnings:
            if problem not in _said:
                _said.add(problem)
                log.warning("%s", problem)
