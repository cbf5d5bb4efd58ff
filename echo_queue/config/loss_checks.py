"""Finds settings of the loss that do not go together, though each value is valid alone."""

from collections.abc import Iterator

from echo_queue.config import Config, Correction, Learner
from echo_queue.config.corrections import WHERE, correction_contradictions
from echo_queue.errors import Problem


def loss_contradictions(config: Config) -> Iterator[Problem]:
    """Yields every contradiction between the settings of the loss, and with those of samples and rewards."""
    learner, correction = config.learner, config.learner.correction
    if learner.mini_batches > learner.batch_groups:
        what = f"{learner.mini_batches} is more than learner.batch_groups, {learner.batch_groups}: each needs a group"
        yield Problem("learner.mini_batches", what, f"set {learner.batch_groups} or less")
    if learner.loss:
        if ":" not in learner.loss:
            yield Problem("learner.loss", f"{learner.loss} names no function", 'write "module:function"')
        if correction != Correction():
            yield Problem(WHERE, "is not used with learner.loss, which replaces it", "remove one of the two")
        return
    yield from correction_contradictions(correction)
    if correction.use == "none" and config.staleness.s:
        what = f'is "none", which is right for fresh data only; staleness.s is {config.staleness.s}'
        yield Problem(f"{WHERE}.use", what, "choose a correction, or set staleness.s to 0")
    elif correction.use == "none" and learner.mini_batches > 1:
        what = f'is "none", and the policy moves between the steps of {learner.mini_batches} mini-batches'
        yield Problem(f"{WHERE}.use", what, "choose a correction, or set learner.mini_batches to 1")
    yield from _nucleus(config)


def sample_contradictions(config: Config) -> Iterator[Problem]:
    """Yields every contradiction between the settings of advantages, normalisation and lengths."""
    learner, longest = config.learner, config.model.max_new_tokens
    if learner.normalise == "constant" and not learner.normalise_tokens:
        what = 'is 0, but normalise = "constant" divides by it'
        yield Problem("learner.normalise_tokens", what, f"set model.max_new_tokens, {longest}")
    yield from _lengths(learner, longest)
    if learner.long_until and config.selection.refill:
        what = "looks for groups that differ in the environment's reward, and learner.long_until changes rewards"
        yield Problem("selection.refill", what, "turn one of the two off")
    least = min(environment.reward_min for environment in config.trained_environments)
    if learner.advantage == "max" and (least < 0 or learner.long_until):
        what = 'is "max", which divides by the mean reward, and rewards may be negative'
        fix = 'set environment.reward_min to 0 and remove learner.long_until, or set advantage to "std" or "mean"'
        yield Problem("learner.advantage", what, fix)


def _lengths(learner: Learner, longest: int) -> Iterator[Problem]:
    where, begin, end = "learner.long_until", learner.long_from, learner.long_until
    if end and begin >= end:
        yield Problem(where, f"{end} is not above long_from, {begin}", "raise it: the penalty grows between the two")
    elif end > longest:
        what = f"{end} is more than model.max_new_tokens, {longest}: no sample would get all of the penalty"
        yield Problem(where, what, f"set {longest} or less")


def _nucleus(config: Config) -> Iterator[Problem]:
    """Yields a problem if ratios of fresh data could lie below what the correction lets through."""
    key, least = config.learner.correction.least
    if config.rollout.top_p <= least:
        yield Problem(
            "rollout.top_p",
            "samples come from the nucleus, the learner's policy is the whole distribution: their ratio may be as low "
            f"as top_p on fresh data, and {WHERE}.{key} would cut it off",
            f"set top_p above {least:g}; 1 makes the ratio exact",
        )
