"""The one place that decides whether a learner may train on a group, and a worker continue a partial rollout.

- Everything the learner relies on is checked: size, number of samples, lengths, token ids, log-probabilities, observed
  ranges, the versions that the sender can have had, rewards and their range, and how each sample ended.
- A group that fails is a `BadGroup`: a cause, one word that the queue counts, and a reason for a person.
  `GroupValidator` counts those of each sender, and names a worker that sends nothing else.
- Text that no model wrote and a false reward within its range pass: see docs/reliability.md, what is not promised.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NoReturn, get_args

import numpy as np

from echo_queue.config import Config, Environment, component_name
from echo_queue.errors import Problem
from echo_queue.records import Group, Observed, PartialGroup, PartialSample, Sample, Tokens, Version
from echo_queue.records.group_codec import CodecError, refuse

Cause = Literal["bytes", "entry", "shape", "tokens", "logprobs", "observed", "versions", "reward", "finish"]
"""`bytes`: the bytes are not a group; `entry`: the group is not the one that its entry in the stream names."""
CAUSES: tuple[Cause, ...] = get_args(Cause)
LIMITED: frozenset[Cause] = frozenset({"shape", "observed", "reward", "finish"})
"""The causes that a change of the configuration explains: group size, lengths, turns, and the range of rewards."""

LOGPROB_MAX = 1e-3
"""A probability is at most 1, but rounding in an engine may put its logarithm a little above 0."""
LOGPROB_MIN = -1e3
"""Float32 sampling draws no token below −104; no token was drawn with a log-probability below this."""
PATIENCE = 8
"""The number of bad groups in a row after which a worker is suspended, for batches smaller than that."""


class BadGroup(CodecError):
    """A group that may not be trained, with the rule that it breaks."""

    def __init__(self, cause: Cause, rule: str) -> None:
        super().__init__(Problem("replay record", rule, "check the worker that made it"))
        self.cause = cause


class UnfitGroup(BadGroup):
    """A group of an earlier lineage that may not be trained under the limits of today's configuration.

    Nobody is to blame: the limits have changed since it was made, and its task is generated again.
    """


@dataclass(frozen=True)
class GroupLimits:
    """The bounds that a run's configuration sets to a group.

    Those of an evaluation's set are in `held_out`, and those of a component's sets in `components`, by their names.
    """

    samples: int
    vocabulary: int
    prompt_tokens: int
    new_tokens: int
    """Sampled and observed tokens of one sample."""
    reward_min: float
    reward_max: float
    turns: int = 1
    """Turns of the model in one sample; observations lie between them."""
    held_out: Mapping[str, "GroupLimits"] = field(default_factory=dict)
    components: Mapping[str, "GroupLimits"] = field(default_factory=dict)
    samples_key: str = "rollout.group_size"
    tokens_key: str = "model.max_new_tokens"
    """The names of the keys that set two of these bounds."""

    @classmethod
    def of(cls, config: Config, vocabulary: int) -> "GroupLimits":
        model = config.model

        def limits(samples: int, new_tokens: int, environment: Environment) -> "GroupLimits":
            return cls(
                samples=samples,
                vocabulary=vocabulary,
                prompt_tokens=model.max_prompt_tokens,
                new_tokens=new_tokens,
                reward_min=environment.reward_min,
                reward_max=environment.reward_max,
                turns=environment.most_turns,
            )

        held_out = {
            one.name: replace(
                limits(one.samples, one.limit(model), config.environment_of(one.name)),
                samples_key=f"the number of samples of the evaluation {one.name}",
                tokens_key=f"the longest answer of the evaluation {one.name}",
            )
            for one in config.evaluation
        }
        group_size = config.rollout.group_size
        components = {
            one.name: replace(
                limits(group_size, one.limit(model), config.environment_of(one.name)),
                tokens_key=f"the longest answer of the component {one.name}",
            )
            for one in config.mixture
        }
        trained = limits(group_size, model.max_new_tokens, config.environment)
        return replace(trained, held_out=held_out, components=components)

    def of_set(self, name: str) -> "GroupLimits":
        """Returns the bounds for a group of this set."""
        return self.held_out.get(name) or self.components.get(component_name(name)) or self


def check(group: Group, limits: GroupLimits) -> None:
    """Raises `BadGroup` unless a worker of this configuration can have made `group`."""
    limits = limits.of_set(group.set)
    if len(group.samples) != limits.samples:
        _bad("shape", f"it has {len(group.samples)} samples; {limits.samples_key} is {limits.samples}")
    if not 0 < len(group.prompt) <= limits.prompt_tokens:
        what = f"its prompt has {len(group.prompt)} tokens; model.max_prompt_tokens is {limits.prompt_tokens}"
        _bad("shape", what)
    if not _in_range(group.prompt, limits.vocabulary):
        _bad("tokens", f"its prompt has token ids outside the model's vocabulary of {limits.vocabulary}")
    for number, sample in enumerate(group.samples):
        _check_sample(f"sample {number}", sample, limits)


def check_versions(group: Group, newest: Version) -> None:
    """Raises `BadGroup` if no worker can have had the weights that `group` names. `newest`: the newest handed out.

    The age of the weights is checked by the queue, at drain and again in the learner.
    """
    if group.lineage > newest.lineage:
        _bad("versions", f"it names lineage {group.lineage}; this learner is {newest.lineage}")
    if group.newest > newest.number:
        _bad("versions", f"it names version {group.newest}; the newest handed out is {newest.number}")
    for number, sample in enumerate(group.samples):
        versions = [span.version for span in sample.spans]
        if versions != sorted(versions):
            _bad("versions", f"sample {number} goes back to older weights: {versions}")


def check_partials(partials: PartialGroup, limits: GroupLimits) -> None:
    """Raises `CodecError` unless a worker of this configuration can have made `partials`."""
    limits = limits.of_set(partials.task.rsplit("/", 2)[0])
    if len(partials.samples) != limits.samples:
        refuse(f"{len(partials.samples)} samples; {limits.samples_key} is {limits.samples}")
    for sample in partials.samples:
        _check_partial(sample, limits)


@dataclass(frozen=True)
class UnworthyWorker:
    """A worker that has sent too many bad groups in a row, why they were bad, and of which tasks they were."""

    name: str
    reason: str
    tasks: list[str]


class GroupValidator:
    """Checks each group for the learner of `newest.lineage`, and counts the bad ones of each worker.

    `newest`: the newest weights handed out so far; the learner advances it. `patience`: the number of bad groups of one
    worker in a row that is too many.
    """

    def __init__(self, limits: GroupLimits, newest: Version, patience: int = PATIENCE) -> None:
        self.newest = newest
        self._limits = limits
        self._patience = patience
        self._streaks: dict[str, list[str]] = {}
        """The tasks of each worker's bad groups since its last good one."""
        self._last: dict[str, str] = {}
        """The reason of each worker's last bad group."""
        self.suspended: set[str] = set()
        """Workers that another validator has found unworthy, which knows nothing of the tasks that they failed here."""
        self.unworthy: list[UnworthyWorker] = []
        """The workers found since anybody's last good group, in this order."""

    def check(self, group: Group) -> None:
        """Raises `BadGroup` for a group that may not be trained.

        Raises `UnfitGroup` if it was made before this learner began, and its limits explain why.
        """
        try:
            check(group, self._limits)
        except BadGroup as error:
            if group.lineage < self.newest.lineage and error.cause in LIMITED:
                raise UnfitGroup(error.cause, error.problems[0].what) from None
            raise
        check_versions(group, self.newest)

    def good(self, worker: str) -> None:
        """Notes a good group, which ends the worker's streak of bad ones."""
        self._streaks.pop(worker, None)
        self.unworthy.clear()

    def bad(self, worker: str, task: str, reason: str) -> None:
        """Notes a bad group of `task`."""
        self._streaks.setdefault(worker, []).append(task)
        self._last[worker] = reason

    def find_unworthy(self) -> list[UnworthyWorker]:
        """Returns the workers whose last `patience` groups were bad, or more, and begins to count them anew.

        Of those that are `suspended`, one bad group is enough.
        """
        found = [
            self._judged(worker, tasks)
            for worker, tasks in self._streaks.items()
            if len(tasks) >= self._patience or worker in self.suspended
        ]
        for one in found:
            del self._streaks[one.name]
        self.unworthy += found
        return found

    def _judged(self, worker: str, tasks: list[str]) -> UnworthyWorker:
        what = f"{len(tasks)} groups in a row could not be trained; the last: {self._last[worker]}"
        return UnworthyWorker(worker, what, tasks)


def _check_sample(where: str, sample: Sample, limits: GroupLimits) -> None:
    length = len(sample.tokens)
    if not 0 < length <= limits.new_tokens:
        _bad("shape", f"{where} has {length} tokens; {limits.tokens_key} is {limits.new_tokens}")
    if len(sample.logprobs) != length:
        what = f"{where} has {len(sample.logprobs)} behaviour log-probabilities for {length} tokens"
        _bad("logprobs", f"{what}; off-policy data cannot be corrected without them")
    if not _in_range(sample.tokens, limits.vocabulary):
        _bad("tokens", f"{where} has token ids outside the model's vocabulary of {limits.vocabulary}")
    if not np.isfinite(sample.logprobs).all():
        what = f"{where} has behaviour log-probabilities that are not finite"
        _bad("logprobs", f"{what}; off-policy data cannot be corrected with them")
    _check_observed(where, sample.observed, limits)
    low, high = float(sample.logprobs.min()), float(sample.logprobs.max())
    if high > LOGPROB_MAX or low < LOGPROB_MIN:
        _bad("logprobs", f"{where} has behaviour log-probabilities from {low:g} to {high:g}")
    if not math.isfinite(sample.reward) or not limits.reward_min <= sample.reward <= limits.reward_max:
        allowed = f"environment.reward_min is {limits.reward_min:g}, reward_max {limits.reward_max:g}"
        _bad("reward", f"{where} has the reward {sample.reward:g}; {allowed}")
    if sample.finish == "abort":
        _bad("finish", f"{where} was cut off before its end")
    if sample.finish == "length" and length != limits.new_tokens:
        what = f"{where} ends by its length with {length} tokens; {limits.tokens_key} is {limits.new_tokens}"
        _bad("finish", what)


def _check_partial(sample: PartialSample, limits: GroupLimits) -> None:
    length = len(sample.tokens)
    if length > limits.new_tokens or (sample.finish is None and length == limits.new_tokens):
        refuse(f"a partial rollout of {length} tokens; {limits.tokens_key} is {limits.new_tokens}")
    if sample.finish == "abort" or (sample.finish == "length" and length != limits.new_tokens):
        refuse(f"a partial rollout of {length} tokens cannot have ended by {sample.finish}")
    if length and sample.tokens.max() >= limits.vocabulary:
        refuse(f"a token id is outside the model's vocabulary of {limits.vocabulary}")
    if length and not LOGPROB_MIN <= sample.logprobs.min() <= sample.logprobs.max() <= LOGPROB_MAX:
        refuse("a log-probability is outside the range in which tokens are drawn")
    _check_observed("a partial rollout", sample.observed, limits)


def _check_observed(where: str, observed: Sequence[Observed], limits: GroupLimits) -> None:
    """Checks the observed ranges of a sample or a partial rollout. Raises `BadGroup`."""
    if len(observed) >= limits.turns:
        what = f"{where} has {len(observed)} observations; this environment takes {limits.turns} turns at most"
        _bad("observed", what)
    edges = [0, *(edge for part in observed for edge in part)]
    if any(later <= earlier for earlier, later in pairwise(edges)):
        _bad("observed", f"{where} has observations {edges[1:]}, without what the model wrote before each")


def _in_range(tokens: Tokens, vocabulary: int) -> bool:
    return bool(tokens.min() >= 0 and tokens.max() < vocabulary)


def _bad(cause: Cause, rule: str) -> NoReturn:
    raise BadGroup(cause, rule)
