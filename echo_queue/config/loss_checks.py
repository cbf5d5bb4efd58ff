"""Finds settings of the loss that do not go together, though each value is valid alone."""

from collections.abc import Iterator, Mapping

from echo_queue.config import Config, Correction, Learner
from echo_queue.errors import Problem

WHERE = "learner.correction"
LEVELS_OF_USE: Mapping[str, tuple[str, ...]] = {
    "none": ("token",),
    "clip": ("token", "sequence"),
    "truncate": ("token", "sequence", "product"),
    "mask": ("token", "sequence", "product"),
    "dppo": ("token",),
    "m2po": ("token",),
}
ANCHORED = ("clip", "truncate", "mask")
"""The uses whose ratio may be taken to another policy than the behaviour policy."""
LEVEL_REASONS: Mapping[str, str] = {
    "none": "uses no ratio",
    "clip": "would cut off nearly every sample: the product of many ratios is seldom within the clip",
    "dppo": "compares probabilities of tokens",
    "m2po": "leaves out tokens",
}


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
    yield from _correction(correction)
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
    if learner.advantage == "max" and (config.environment.reward_min < 0 or learner.long_until):
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


def _correction(correction: Correction) -> Iterator[Problem]:
    use, level = correction.use, correction.level
    if level not in LEVELS_OF_USE[use]:
        what = f'"{level}" does not go with use = "{use}", which {LEVEL_REASONS[use]}'
        yield Problem(f"{WHERE}.level", what, f"set {' or '.join(LEVELS_OF_USE[use])}, or another use")
    anchor = correction.anchor
    if (anchor != "behaviour" and use not in ANCHORED) or (anchor == "proximal" and level != "token"):
        what = f'"{anchor}" does not go with use = "{use}" at level "{level}", which is defined by the behaviour policy'
        at_level = ' at level "token"' if anchor == "proximal" else ""
        yield Problem(f"{WHERE}.anchor", what, f'set "behaviour", or clip, truncate or mask{at_level}')
    if use == "mask" and correction.mask_low >= correction.mask_high:
        yield Problem(f"{WHERE}.mask_high", "is not above mask_low: every token would be masked", "raise it")
    if correction.filter_high and not correction.filter_low < 1 < correction.filter_high:
        what = "and filter_low do not enclose 1: samples of the policy itself would be filtered"
        yield Problem(f"{WHERE}.filter_high", what, "set filter_low below 1, and filter_high above")


def _nucleus(config: Config) -> Iterator[Problem]:
    """Yields a problem if ratios of fresh data could lie below what the correction lets through."""
    correction = config.learner.correction
    if correction.anchor == "old":
        return  # the learner evaluates both sides of the ratio by whole distributions
    key, lowest = {
        "clip": ("clip_low", 1 - correction.clip_low),
        "mask": ("mask_low", correction.mask_low),
    }.get(correction.use, ("", 0.0))
    if config.rollout.top_p <= lowest:
        yield Problem(
            "rollout.top_p",
            "samples come from the nucleus, the learner's policy is the whole distribution: their ratio may be as low "
            f"as top_p on fresh data, and {WHERE}.{key} would cut it off",
            f"set top_p above {lowest:g}; 1 makes the ratio exact",
        )
