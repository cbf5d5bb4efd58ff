"""The metrics of a run: one JSON object per line in `metrics.jsonl`, appended by the learner.

The learner writes one line per update, whole, and lines survive a restart. After a fork the reader keeps, for each
version, the line of the highest lineage. What others than the learner's machine read is in Redis (`run_record.py`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import Field, PlainSerializer, TypeAdapter, ValidationError

from echo_queue import failpoints
from echo_queue.documents import printed
from echo_queue.reporting.components import (
    ComponentFigures,
    ComponentSummary,
    averaged_at_ends,
    is_cut,
    is_flat,
    mean_reward,
    mean_rewards,
    summaries,
)


def _measured(value: float) -> float | None:
    return value or None


def _stated(value: int) -> int | None:
    return value or None


Measured = Annotated[float, PlainSerializer(_measured)]
Stated = Annotated[int, PlainSerializer(_stated)]
"""Figures of which 0 means that they are not known; printed documents say null."""


@dataclass(frozen=True)
class UpdateMetrics:
    """One update. Seconds are wall-clock time; `time_s` is its end, in seconds since the epoch."""

    time_s: float
    lineage: int
    version: int
    reward_mean: float
    reward_std: float
    groups: int
    samples: int
    tokens: int
    lags: dict[str, int]
    """Number of groups trained at each lag, in updates. A group's lag is that of its oldest token."""
    zero_variance_groups: int
    loss: float
    grad_norm: float
    clip_fraction: float
    kl_behaviour: float
    """Mean of the behaviour log-probability minus the learner's, which measures how far off-policy the batch was."""
    entropy: float
    lr: float
    wait_s: float
    """Idle time of the learner, in which it waited for admissible groups."""
    train_s: float
    save_s: float
    """Time before this update to save the result of the one before: checkpoint, commit, snapshot for publication."""
    window: float
    depths: dict[str, int]
    """Queue depths after the update: backlog, tasks, retry, ready, replay, trained, dead."""
    sent_back: int
    """Number of groups sent back as late, abandoned or cancelled since the run began."""
    trained_ids: Annotated[tuple[str, ...], Field(exclude=True)] = ()
    """They are on the learner's machine alone, and not printed."""
    t_bcast_s: Measured = 0.0
    """T_bcast: the time from the end of an update until all living workers serve its weights (smoothed)."""
    store_bytes: int = 0
    """Weight bytes that the living workers have read from the store since they started."""
    peer_bytes: int = 0
    """Weight bytes that the living workers have read from peers since they started."""
    anchor_bytes: int = 0
    """Weight bytes stored as anchors since this learner started."""
    delta_bytes: int = 0
    """Weight bytes stored as deltas since this learner started."""
    arrived_s: float = 0.0
    """Time from the publication of a version until a worker served it, the last time, of the slowest living worker."""
    arrived_p50_s: float = 0.0
    """The same of the median worker."""
    arrived_p90_s: float = 0.0
    """The same of the worker that 90 % are no slower than."""
    generation_s: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The 50 %, 90 % and 99 % quantiles of groups' times from lease to acceptance, by pool."""
    token_lag: float = 0.0
    """Mean lag of the tokens, each by its own version; below the groups' mean lag if weights change within samples."""
    mixed_groups: int = 0
    """Number of groups with tokens of several versions."""
    pause_s: float = 0.0
    """Longest pause of a living worker's engine to load its version."""
    reused_lags: dict[str, int] = field(default_factory=dict)
    """Number of groups of earlier updates that this one trained again, at each lag. No other figure counts them."""
    kappa: Stated = 0
    """κ: the number of updates per publication, also where the learner chooses it. 0: an older learner did not say."""
    kl_reference: float = 0.0
    """Mean KL(policy ‖ base model) per token; 0 without `learner.kl`."""
    filtered_fraction: float = 0.0
    """Share of the tokens that the filters of `learner.correction` took out with their samples."""
    ess_tokens: float = 1.0
    """Effective sample size of the tokens by their ratios ρ to the behaviour policy, as a share of their number."""
    ess_samples: float = 1.0
    """The same of the samples, by the products of their tokens' ratios."""
    second_moment: float = 0.0
    """Mean of the tokens' (log ρ)²."""
    ratio_quantiles: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The 1 %, 50 % and 99 % quantiles of ρ among the tokens of each lag, in updates."""
    length_mean: float = 0.0
    """Mean length of the samples, in tokens."""
    length_max: int = 0
    """Length of the longest sample, in tokens."""
    truncated_fraction: float = 0.0
    """Share of the samples that were cut off at their largest length."""
    alarm: str = ""
    """What the guard found wrong with the update; empty if nothing."""
    steps: int = 1
    """Number of optimizer steps of the update. 0: none of its groups could be trained."""
    old_exact_fraction: float = 0.0
    """Share of the tokens that are corrected by exact old log-probabilities; 0 unless `anchor` is `old`."""
    kl_engine: float = 0.0
    """Mean of log μ − log π_old over the tokens of rebuilt versions: what the engine computes otherwise."""
    workers: int | None = None
    """Number of living workers after the update; None: an older learner did not say."""
    sets: dict[str, int] = field(default_factory=dict)
    """Number of the update's groups of each prompt set, of the largest `SETS`; empty: an older learner did not say."""

    rewards: dict[str, float] = field(default_factory=dict)
    """Mean of what each reward function gave the samples, before its weight; empty: an environment of another kind."""
    components: dict[str, ComponentFigures] = field(default_factory=dict)
    """The figures of each component of the mixture of which the update trained a group; empty without a mixture."""


SETS = 32
"""So many sets of an update are recorded, so that Redis can keep its record."""
RECORDS = TypeAdapter(UpdateMetrics)
FLAT_UPDATES = 8
"""So many updates in a row without any difference between the rewards of a prompt's samples are worth a warning, and so
are as many whose samples were cut off."""
COMPONENT_GROUPS = 64
"""So many groups of a component in a row without a difference, or cut off, are worth a warning: an update may have only
one of them."""


class MetricsLog:
    """Appends updates to the file at `path`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, metrics: UpdateMetrics) -> None:
        line = line_of(metrics) + b"\n"
        failpoints.step("write metrics", lambda: self._file.write(line), metrics)


def line_of(metrics: UpdateMetrics) -> bytes:
    """Returns the line that records an update, without its end."""
    return orjson.dumps(asdict(metrics))


def update_of(line: bytes) -> UpdateMetrics | None:
    """Returns the update that a line records; None for a line that is torn or of another release."""
    try:
        metrics = RECORDS.validate_json(line)
    except ValidationError:
        return None
    return metrics if all(lag.isdecimal() for lag in metrics.lags) else None


class SurvivingUpdates:
    """The updates of the surviving history, of all that were made."""

    def __init__(self) -> None:
        self._surviving: list[UpdateMetrics] = []
        """Versions ascend, and lineages never descend."""
        self._answer: Sequence[UpdateMetrics] = ()

    def with_these(self, updates: Sequence[UpdateMetrics]) -> Sequence[UpdateMetrics]:
        """Adds updates, in the order in which they were made, and returns the surviving ones, by version.

        The answer is the same object as the one before if there are none to add.
        """
        for metrics in updates:
            self._keep(metrics)
        if updates:
            self._answer = tuple(self._surviving)
        return self._answer

    def _keep(self, metrics: UpdateMetrics) -> None:
        """Adds an update, which abandons those that were made before it from its version on.

        It counts for nothing if a later lineage has updates already.
        """
        surviving = self._surviving
        if surviving and surviving[-1].lineage > metrics.lineage:
            return
        while surviving and surviving[-1].version >= metrics.version:
            surviving.pop()
        surviving.append(metrics)


class MetricsReader:
    """Follows a log that is being written: each `read` reads only the lines appended since the one before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._updates = SurvivingUpdates()

    def read(self) -> Sequence[UpdateMetrics]:
        """Returns the updates of the surviving history, by version, without torn lines.

        The answer is the same object as the one before if nothing was appended since.
        """
        return self._updates.with_these([metrics for line in self._appended() if (metrics := update_of(line))])

    def _appended(self) -> list[bytes]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.splitlines()


def read(path: Path) -> Sequence[UpdateMetrics]:
    """Returns the updates of the surviving history, by version, without torn lines."""
    return MetricsReader(path).read()


@printed("tokens_per_s", "idle_share", "mean_lag", "max_lag", "sent_back_share")
@dataclass(frozen=True)
class Summary:
    """The figures of a run, or of a part of it."""

    updates: int
    groups: int
    samples: int
    tokens: int
    seconds: float
    """Time from the beginning of the first update to the end of the last, including times when the run was stopped."""
    busy_s: float
    idle_s: float
    """Time that the learner waited for admissible groups."""
    save_s: float
    lags: dict[int, int]
    """Number of groups trained at each lag, in updates. A group's lag is that of its oldest token."""
    token_lag: float
    """Mean lag of all tokens, each by its own version."""
    mixed_groups: int
    sent_back: int
    t_bcast_s: Measured
    """The last measurement."""
    reward_first: float
    reward_last: float
    """Mean rewards of the samples of the first and of the last `reward_updates` updates."""
    rewards_last: dict[str, float]
    """Mean of what each reward function gave those last samples, before its weight."""
    reward_updates: int
    """Over how many updates the rewards are averaged: over a tenth of them, between five and ten, and at most half."""
    anchor_bytes: int
    delta_bytes: int
    """Weight bytes stored as anchors and as deltas."""
    store_bytes: int
    peer_bytes: int
    """Weight bytes that the last workers read from the store and from peers."""
    kappa: Stated
    """The number of updates per publication, at last; 0: not known."""
    flat_updates: int
    """The number of the last updates, in a row, in which the samples of every prompt had equal rewards."""
    cut_updates: int
    """The number of the last updates, in a row, of whose samples at least `CUT_SHARE` were cut off."""
    components: dict[str, ComponentSummary]
    """The figures of each component of the mixture that was trained; empty without a mixture."""

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens per second of the learner's time, busy or not."""
        return self.tokens / max(self.busy_s + self.idle_s + self.save_s, 1e-9)

    @property
    def idle_share(self) -> float:
        """The share of the learner's time that it waited for groups."""
        return self.idle_s / max(self.busy_s + self.idle_s + self.save_s, 1e-9)

    @property
    def mean_lag(self) -> float:
        return sum(lag * count for lag, count in self.lags.items()) / max(sum(self.lags.values()), 1)

    @property
    def max_lag(self) -> int:
        return max((lag for lag, count in self.lags.items() if count), default=0)

    @property
    def sent_back_share(self) -> float:
        """The share of groups that went back as late, abandoned or cancelled, among these and the trained ones."""
        return self.sent_back / max(self.groups + self.sent_back, 1)


def summarise(updates: Sequence[UpdateMetrics]) -> Summary:
    """Summarises updates, which are in order of their versions."""
    lags: Counter[int] = Counter()
    for update in updates:
        lags.update({int(lag): count for lag, count in update.lags.items()})
    averaged = averaged_at_ends(len(updates))
    ends = list({update.lineage: update for update in updates}.values())  # the last of each learner
    return Summary(
        updates=len(updates),
        groups=sum(update.groups for update in updates),
        samples=sum(update.samples for update in updates),
        tokens=sum(update.tokens for update in updates),
        seconds=updates[-1].time_s - began_s(updates[0]) if updates else 0.0,
        busy_s=sum(update.train_s for update in updates),
        idle_s=sum(update.wait_s for update in updates),
        save_s=sum(update.save_s for update in updates),
        lags=dict(sorted(lags.items())),
        token_lag=sum(update.token_lag * update.tokens for update in updates) / max(sum(u.tokens for u in updates), 1),
        mixed_groups=sum(update.mixed_groups for update in updates),
        sent_back=max((update.sent_back for update in updates), default=0),
        t_bcast_s=updates[-1].t_bcast_s if updates else 0.0,
        reward_first=mean_reward(updates[:averaged]),
        reward_last=mean_reward(updates[len(updates) - averaged :]),
        rewards_last=mean_rewards(updates[len(updates) - averaged :]),
        reward_updates=averaged,
        anchor_bytes=sum(update.anchor_bytes for update in ends),
        delta_bytes=sum(update.delta_bytes for update in ends),
        store_bytes=ends[-1].store_bytes if ends else 0,
        peer_bytes=ends[-1].peer_bytes if ends else 0,
        kappa=updates[-1].kappa if updates else 0,
        flat_updates=sum(1 for _ in takewhile(is_flat, reversed(updates))),
        cut_updates=sum(1 for _ in takewhile(is_cut, reversed(updates))),
        components=summaries([update.components for update in updates]),
    )


def sets_of(updates: Sequence[UpdateMetrics]) -> Counter[str]:
    """Returns how many groups of each prompt set were trained, in the order in which the sets came.

    The records of an older learner name the tasks alone, and those of them in Redis name none.
    """
    found: Counter[str] = Counter()
    for update in updates:
        found.update(update.sets or [task.rsplit("/", 2)[0] for task in update.trained_ids])
    return found


def warnings(summary: Summary, *, over: bool = False) -> tuple[str, ...]:
    """Returns what is wrong with the samples: the last updates have taught nothing, or nearly all answers were cut off.

    Of a run with a mixture, what is wrong with one component, unless it is so with all. `over`: the run has ended, so
    that it is enough if all of its updates, however few, were like that.
    """
    flat, cut = (_which(summary, streak, over) for streak in (summary.flat_updates, summary.cut_updates))
    found = [taught_nothing(flat)] if flat else []
    found += [cut_off(cut)] if cut else []
    for name, one in summary.components.items():
        if not flat and (which := _which_groups(name, one, one.flat_groups, over)):
            found.append(taught_nothing(which))
        if not cut and (which := _which_groups(name, one, one.cut_groups, over)):
            found.append(cut_off(which, "its max_new_tokens"))
    return tuple(found)


def _which(summary: Summary, streak: int, over: bool) -> str:
    """Returns which updates are worth a warning; an empty text if they are too few."""
    everything = streak == summary.updates
    if not streak or (streak < FLAT_UPDATES and not (over and everything)):
        return ""
    return "all updates" if everything else f"the last {streak:,} updates"


def _which_groups(name: str, component: ComponentSummary, streak: int, over: bool) -> str:
    """Returns which groups of a component are worth a warning; an empty text if they are too few."""
    everything = streak == component.groups
    if not streak or (streak < COMPONENT_GROUPS and not (over and everything)):
        return ""
    return f"all groups of component {name}" if everything else f"the last {streak:,} groups of component {name}"


def taught_nothing(which: str) -> str:
    """Returns the sentence about updates, or groups, without any difference between rewards."""
    return (
        f"{which} taught nothing: the samples of each prompt had equal rewards. Look at some with `echo-queue show`: "
        "the reward function may be constant, or the prompts too hard or too easy"
    )


def cut_off(which: str, limit: str = "model.max_new_tokens") -> str:
    """Returns the sentence about updates, or groups, whose samples have no end. `limit`: the key that cuts them off."""
    return (
        f"nearly all answers of {which} were cut off at {limit}: raise it, or ask for shorter answers. "
        "A reward that looks for the end of an answer does not find it"
    )


def began_s(update: UpdateMetrics) -> float:
    """Returns the time, in seconds since the epoch, at which the learner began to wait for this update's groups."""
    return update.time_s - update.wait_s - update.train_s - update.save_s
