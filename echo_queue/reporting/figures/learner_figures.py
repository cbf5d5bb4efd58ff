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
        Figure(
            "echo_queue_update_version",
            "gauge",
            "The version that the newest update made; after a rewind it is the old one until the next update.",
            NEWEST,
            "the learner's version",
            "Nothing.",
            _newest(lambda update: update.version),
        ),
        Figure(
            "echo_queue_update_timestamp_seconds",
            "gauge",
            "When the newest update ended, in seconds since 1970 by the learner's clock.",
            NEWEST,
            "as long ago as an update lasts",
            "As for `echo_queue_updates_total`.",
            _newest(lambda update: update.time_s),
        ),
        Figure(
            "echo_queue_update_wait_seconds",
            "gauge",
            "Time that the learner waited for admissible groups before the newest update.",
            NEWEST,
            "a small share of the training time",
            "Rent machines, or raise S: see [capacity](capacity.md).",
            _newest(lambda update: update.wait_s),
        ),
        Figure(
            "echo_queue_update_train_seconds",
            "gauge",
            "T_train: time that the newest update took to train.",
            NEWEST,
            "steady",
            "Longer samples make it longer; see the learner's machine.",
            _newest(lambda update: update.train_s),
        ),
        Figure(
            "echo_queue_update_save_seconds",
            "gauge",
            "Time before the newest update to save the result of the one before.",
            NEWEST,
            "a small share of the training time",
            "The store or the disk is slow: save less often (`learner.checkpoint_updates`).",
            _newest(lambda update: update.save_s),
        ),
        Figure(
            "echo_queue_idle_ratio",
            "gauge",
            "Share of the learner's time that it waited for groups.",
            RECENT,
            "below 0.2",
            "Rent machines, or raise S: see [capacity](capacity.md).",
            _recent(lambda recent: recent.idle_share),
        ),
        Figure(
            "echo_queue_trained_tokens_per_second",
            "gauge",
            "Trained tokens per second of the learner's time, busy or not.",
            RECENT,
            "steady",
            "As for `echo_queue_idle_ratio` if the learner is idle, else see its machine.",
            _recent(lambda recent: recent.tokens_per_s),
        ),
        Figure(
            "echo_queue_broadcast_seconds",
            "gauge",
            "T_bcast: time from the end of an update until all living workers serve its weights (smoothed).",
            NEWEST,
            "well below S updates",
            "See [who feeds whom](operations.md#who-feeds-whom-with-weights-and-how-long-do-they-take).",
            _newest(lambda update: update.t_bcast_s or None),
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
        Figure(
            "echo_queue_lag_mean_updates",
            "gauge",
            "Mean lag of the trained groups, each by its oldest token.",
            RECENT,
            "below S",
            "A lag near S means late groups: see [tuning](tuning.md).",
            _recent(lambda recent: recent.mean_lag),
        ),
        Figure(
            "echo_queue_lag_max_updates",
            "gauge",
            "The largest lag of a trained group.",
            RECENT,
            "at most S",
            "More than S is a bug: stop the learner and report it.",
            _recent(lambda recent: recent.max_lag),
        ),
        Figure(
            "echo_queue_token_lag_mean_updates",
            "gauge",
            "Mean lag of the tokens, each by its own version.",
            RECENT,
            "at most the groups' mean lag",
            "Nothing.",
            _recent(lambda recent: recent.token_lag),
        ),
        Figure(
            "echo_queue_clip_ratio",
            "gauge",
            "Share of the tokens whose ratio the loss clips.",
            NEWEST,
            "a few hundredths",
            "The data is too stale for the step: lower S or the learning rate.",
            _newest(lambda update: update.clip_fraction),
        ),
        Figure(
            "echo_queue_kl_behaviour_nats",
            "gauge",
            "Mean of the behaviour log-probability minus the learner's, per token: how far off-policy the batch was.",
            NEWEST,
            "near 0",
            "As for `echo_queue_clip_ratio`.",
            _newest(lambda update: update.kl_behaviour),
        ),
        Figure(
            "echo_queue_effective_sample_ratio",
            "gauge",
            "Effective sample size of the tokens by their ratios to the behaviour policy, as a share of their number.",
            NEWEST,
            "above 0.5",
            "As for `echo_queue_clip_ratio`; see [the guard](learning.md#the-guard).",
            _newest(lambda update: update.ess_tokens),
        ),
    ),
)

LEARNING = Subject(
    "Learning",
    (
        Figure(
            "echo_queue_reward_mean",
            "gauge",
            "Mean reward of the samples of the newest update.",
            NEWEST,
            "It rises.",
            "See [the reward collapsed](operations.md#paged-at-night).",
            _newest(lambda update: update.reward_mean),
        ),
        Figure(
            "echo_queue_reward_recent_mean",
            "gauge",
            "Mean reward of the samples of the newest updates, five of them once there are ten.",
            RECENT,
            "It rises.",
            "As for `echo_queue_reward_mean`.",
            _recent(lambda recent: recent.reward_last),
        ),
        Figure(
            "echo_queue_reward_deviation",
            "gauge",
            "Standard deviation of the rewards.",
            NEWEST,
            "above 0",
            "Without a difference between rewards there is nothing to learn: easier or harder prompts.",
            _newest(lambda update: update.reward_std),
        ),
        Figure(
            "echo_queue_flat_groups_ratio",
            "gauge",
            "Share of the groups whose samples all had equal rewards.",
            NEWEST,
            "below 0.8",
            "See [selection](selection.md).",
            _newest(lambda update: update.zero_variance_groups / max(update.groups, 1)),
        ),
        Figure(
            "echo_queue_entropy_nats",
            "gauge",
            "Mean entropy of the policy per token.",
            NEWEST,
            "It falls slowly.",
            "A sudden fall is a collapse: lower the learning rate, and `echo-queue rewind`.",
            _newest(lambda update: update.entropy),
        ),
        Figure(
            "echo_queue_kl_reference_nats",
            "gauge",
            "Mean KL(policy ‖ base model) per token; 0 without `learner.kl`.",
            NEWEST,
            "It rises slowly.",
            "Raise `learner.kl`, or lower the learning rate.",
            _newest(lambda update: update.kl_reference),
        ),
        Figure(
            "echo_queue_loss",
            "gauge",
            "The loss of the newest update.",
            NEWEST,
            "near 0",
            "Nothing.",
            _newest(lambda one: one.loss),
        ),
        Figure(
            "echo_queue_grad_norm",
            "gauge",
            "The norm of the gradient before it was clipped.",
            NEWEST,
            "steady",
            "Spikes: lower the learning rate.",
            _newest(lambda update: update.grad_norm),
        ),
        Figure(
            "echo_queue_learning_rate",
            "gauge",
            "The learning rate of the newest update.",
            NEWEST,
            "as scheduled",
            "Nothing.",
            _newest(lambda update: update.lr),
        ),
        Figure(
            "echo_queue_sample_tokens_mean",
            "gauge",
            "Mean length of the samples, in tokens.",
            NEWEST,
            "It changes slowly.",
            "A sudden change: read samples with `echo-queue show`.",
            _newest(lambda update: update.length_mean),
        ),
        Figure(
            "echo_queue_truncated_ratio",
            "gauge",
            "Share of the samples that were cut off at their largest length.",
            NEWEST,
            "small",
            "Raise `model.max_new_tokens`, or reward short answers.",
            _newest(lambda update: update.truncated_fraction),
        ),
        Figure(
            "echo_queue_alarm",
            "gauge",
            "Whether the guard found something wrong with the newest update.",
            NEWEST,
            "0",
            "See [the guard](learning.md#the-guard); the learner's log says what it found.",
            _newest(lambda update: float(bool(update.alarm))),
        ),
    ),
)
