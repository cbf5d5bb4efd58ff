"""The figures of updates, as the learner records them in Redis."""

from collections.abc import Callable

from echo_queue.reporting.figures.figure import Figure, Reading, Subject, Values, one
from echo_queue.reporting.metrics import Summary, UpdateMetrics

NEWEST = "The record of the newest update"
RECENT = "The records of the newest 20 updates, without those that a rewind left behind"


def _newest(value: Callable[[UpdateMetrics], float | None]) -> Callable[[Reading], Values]:
    return lambda reading: one(value(reading.update) if reading.update else None)


def _recent(value: Callable[[Summary], float]) -> Callable[[Reading], Values]:
    return lambda reading: one(value(reading.recent) if reading.recent else None)


def _gauge(
    name: str, meaning: str, source: str, normal: str, action: str, *, values: Callable[[Reading], Values]
) -> Figure:
    return Figure(f"echo_queue_{name}", "gauge", meaning, source, normal, action, values)


TIMES = Subject(
    "The learner's time",
    (
        Figure(
            "echo_queue_updates_total",
            "counter",
            "Updates that were recorded in this Redis, those that a restart or a rewind left behind included.",
            "The stream `updates`",
            "It rises.",
            "See [paged at night](operations.md#paged-at-night): the learner waits, or is away.",
            lambda reading: one(reading.recorded),
        ),
        _gauge(
            "update_version",
            "The version that the newest update made; after a rewind it is the old one until the next update.",
            NEWEST,
            "the learner's version",
            "Nothing.",
            values=_newest(lambda update: update.version),
        ),
        _gauge(
            "update_timestamp_seconds",
            "When the newest update ended, in seconds since 1970 by the learner's clock.",
            NEWEST,
            "as long ago as an update lasts",
            "As for `echo_queue_updates_total`.",
            values=_newest(lambda update: update.time_s),
        ),
        _gauge(
            "update_wait_seconds",
            "Time that the learner waited for admissible groups before the newest update.",
            NEWEST,
            "a small share of the training time",
            "Rent machines, or raise S: see [capacity](capacity.md).",
            values=_newest(lambda update: update.wait_s),
        ),
        _gauge(
            "update_train_seconds",
            "T_train: time that the newest update took to train.",
            NEWEST,
            "steady",
            "Longer samples make it longer; see the learner's machine.",
            values=_newest(lambda update: update.train_s),
        ),
        _gauge(
            "update_save_seconds",
            "Time before the newest update to save the result of the one before.",
            NEWEST,
            "a small share of the training time",
            "The store or the disk is slow: save less often (`learner.checkpoint_updates`).",
            values=_newest(lambda update: update.save_s),
        ),
        _gauge(
            "idle_ratio",
            "Share of the learner's time that it waited for groups.",
            RECENT,
            "below 0.2",
            "Rent machines, or raise S: see [capacity](capacity.md).",
            values=_recent(lambda recent: recent.idle_share),
        ),
        _gauge(
            "trained_tokens_per_second",
            "Trained tokens per second of the learner's time, busy or not.",
            RECENT,
            "steady",
            "As for `echo_queue_idle_ratio` if the learner is idle, else see its machine.",
            values=_recent(lambda recent: recent.tokens_per_s),
        ),
        _gauge(
            "broadcast_seconds",
            "T_bcast: time from the end of an update until all living workers serve its weights (smoothed).",
            NEWEST,
            "well below S updates",
            "See [who feeds whom](operations.md#who-feeds-whom-with-weights-and-how-long-do-they-take).",
            values=_newest(lambda update: update.t_bcast_s or None),
        ),
        Figure(
            "echo_queue_weight_stored_bytes",
            "gauge",
            "Bytes of weights that this learner has stored since it started, as anchors and as deltas.",
            NEWEST,
            "Deltas are a small share of anchors of the same number.",
            "See [weights](weights.md#what-a-delta-costs).",
            lambda reading: (
                {("anchor",): reading.update.anchor_bytes, ("delta",): reading.update.delta_bytes}
                if reading.update
                else {}
            ),
            ("kind",),
        ),
    ),
)

STALENESS = Subject(
    "Staleness",
    (
        _gauge(
            "lag_mean_updates",
            "Mean lag of the trained groups, each by its oldest token.",
            RECENT,
            "below S",
            "A lag near S means late groups: see [tuning](tuning.md).",
            values=_recent(lambda recent: recent.mean_lag),
        ),
        _gauge(
            "lag_max_updates",
            "The largest lag of a trained group.",
            RECENT,
            "at most S",
            "More than S is a bug: stop the learner and report it.",
            values=_recent(lambda recent: recent.max_lag),
        ),
        _gauge(
            "token_lag_mean_updates",
            "Mean lag of the tokens, each by its own version.",
            RECENT,
            "at most the groups' mean lag",
            "Nothing.",
            values=_recent(lambda recent: recent.token_lag),
        ),
        _gauge(
            "clip_ratio",
            "Share of the tokens whose ratio the loss clips.",
            NEWEST,
            "a few hundredths",
            "The data is too stale for the step: lower S or the learning rate.",
            values=_newest(lambda update: update.clip_fraction),
        ),
        _gauge(
            "kl_behaviour_nats",
            "Mean of the behaviour log-probability minus the learner's, per token: how far off-policy the batch was.",
            NEWEST,
            "near 0",
            "As for `echo_queue_clip_ratio`.",
            values=_newest(lambda update: update.kl_behaviour),
        ),
        _gauge(
            "effective_sample_ratio",
            "Effective sample size of the tokens by their ratios to the behaviour policy, as a share of their number.",
            NEWEST,
            "above 0.5",
            "As for `echo_queue_clip_ratio`; see [the guard](learning.md#the-guard).",
            values=_newest(lambda update: update.ess_tokens),
        ),
    ),
)

LEARNING = Subject(
    "Learning",
    (
        _gauge(
            "reward_mean",
            "Mean reward of the samples of the newest update.",
            NEWEST,
            "It rises.",
            "See [the reward collapsed](operations.md#paged-at-night).",
            values=_newest(lambda update: update.reward_mean),
        ),
        _gauge(
            "reward_recent_mean",
            "Mean reward of the samples of the newest updates, five of them once there are ten.",
            RECENT,
            "It rises.",
            "As for `echo_queue_reward_mean`.",
            values=_recent(lambda recent: recent.reward_last),
        ),
        _gauge(
            "reward_deviation",
            "Standard deviation of the rewards.",
            NEWEST,
            "above 0",
            "Without a difference between rewards there is nothing to learn: easier or harder prompts.",
            values=_newest(lambda update: update.reward_std),
        ),
        _gauge(
            "flat_groups_ratio",
            "Share of the groups whose samples all had equal rewards.",
            NEWEST,
            "below 0.8",
            "See [selection](selection.md).",
            values=_newest(lambda update: update.zero_variance_groups / max(update.groups, 1)),
        ),
        _gauge(
            "entropy_nats",
            "Mean entropy of the policy per token.",
            NEWEST,
            "It falls slowly.",
            "A sudden fall is a collapse: lower the learning rate, and `echo-queue rewind`.",
            values=_newest(lambda update: update.entropy),
        ),
        _gauge(
            "kl_reference_nats",
            "Mean KL(policy ‖ base model) per token; 0 without `learner.kl`.",
            NEWEST,
            "It rises slowly.",
            "Raise `learner.kl`, or lower the learning rate.",
            values=_newest(lambda update: update.kl_reference),
        ),
        _gauge(
            "loss", "The loss of the newest update.", NEWEST, "near 0", "Nothing.", values=_newest(lambda one: one.loss)
        ),
        _gauge(
            "grad_norm",
            "The norm of the gradient before it was clipped.",
            NEWEST,
            "steady",
            "Spikes: lower the learning rate.",
            values=_newest(lambda update: update.grad_norm),
        ),
        _gauge(
            "learning_rate",
            "The learning rate of the newest update.",
            NEWEST,
            "as scheduled",
            "Nothing.",
            values=_newest(lambda update: update.lr),
        ),
        _gauge(
            "sample_tokens_mean",
            "Mean length of the samples, in tokens.",
            NEWEST,
            "It changes slowly.",
            "A sudden change: read samples with `echo-queue show`.",
            values=_newest(lambda update: update.length_mean),
        ),
        _gauge(
            "truncated_ratio",
            "Share of the samples that were cut off at their largest length.",
            NEWEST,
            "small",
            "Raise `model.max_new_tokens`, or reward short answers.",
            values=_newest(lambda update: update.truncated_fraction),
        ),
        _gauge(
            "alarm",
            "Whether the guard found something wrong with the newest update.",
            NEWEST,
            "0",
            "See [the guard](learning.md#the-guard); the learner's log says what it found.",
            values=_newest(lambda update: float(bool(update.alarm))),
        ),
    ),
)
