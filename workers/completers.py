"""The completers of a worker: one for each distinct environment of its run, so that none waits for another's.

Nearly all runs have one. A component of a mixture, or an evaluation, with an environment of its own has a completer of
its own, unless it shares that environment with another one.
"""

import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from echo_queue.config import Config
from workers.completer import Completions, EndedSample, GroupCompleter, TrainingFigures
from workers.environments.protocol import Spent
from workers.environments.scorer import Scorer, environments_of
from workers.held_leases import HeldLeases
from workers.prompt_encoder import PromptEncoder


class Completers:
    """`scorers`: those of `environments_of(config)`, in the same order."""

    def __init__(
        self,
        config: Config,
        worker: str,
        queue: Completions,
        *,
        scorers: Sequence[Scorer],
        prompts: PromptEncoder,
        held: HeldLeases,
    ) -> None:
        self.returned: SimpleQueue[EndedSample] = SimpleQueue()
        """Samples that continue after an observation; the rollout loop takes them from here."""
        self.figures = TrainingFigures()
        self._config, self._scorers, self._group_size = config, scorers, config.rollout.group_size
        shared: Any = {"prompts": prompts, "held": held, "returned": self.returned, "figures": self.figures}
        self._all = [GroupCompleter(config, worker, queue, scorer=scorer, **shared) for scorer in scorers]
        self._environments = environments_of(config)
        self._by_set: dict[str, GroupCompleter] = {}

    @property
    def waiting(self) -> int:
        """The number of samples that were submitted and are not yet scored or dropped."""
        return sum(one.waiting for one in self._all)

    @property
    def spent(self) -> Spent:
        """What all judges have cost."""
        return sum((scorer.spent for scorer in self._scorers), Spent())

    def of(self, set: str) -> GroupCompleter:
        """Returns the completer of the samples of a set."""
        if (known := self._by_set.get(set)) is None:
            known = self._by_set[set] = self._all[self._environments.index(self._config.environment_of(set))]
        return known

    def behind(self, groups: int) -> bool:
        """Returns whether an environment is slower than the engine: more `groups` wait for its processes."""
        return any(one.behind > groups * (self._group_size if one.interactive else 1) for one in self._all)

    def wait_ready(self) -> None:
        """Waits for all environments. Raises what `Scorer.wait_ready` raises."""
        for scorer in self._scorers:
            scorer.wait_ready()

    def start(self) -> None:
        for one in self._all:
            one.start()

    def check(self) -> None:
        """Raises the error that ended a completer, if any."""
        for one in self._all:
            one.check()

    def close(self, within_s: float) -> None:
        """Ends all of them after the calls under way; leaves behind those that take longer than `within_s`."""
        give_up = time.monotonic() + within_s
        for one in self._all:
            one.close(max(0.0, give_up - time.monotonic()))
