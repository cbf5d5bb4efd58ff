"""Combinations of a configuration's values that cannot work, each value being valid alone."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from echo_queue.config import Config, Environment, Preemption, Rollout
from echo_queue.errors import Problem

NAMED = {"function": "function", "interactive": "Class", "verifiers": "load_environment"}
"""Kinds that need `environment.function`, and what it names."""

LEAST_TEMPERATURE = 0.01


def contradictions(config: Config) -> Iterator[Problem]:
    """Every one that `config` has."""
    s, kappa = config.staleness.s, config.staleness.kappa
    if kappa != "auto" and kappa > s + 1:
        yield Problem(
            "staleness.kappa",
            f"κ = {kappa} with S = {s}: after {s + 1} updates without a publication nothing is fresh enough to train",
            f"set kappa to {s + 1} or less, or s to {kappa - 1} or more",
        )
    if config.redis.url == "embedded" and config.redis.wait_replicas:
        yield Problem(
            "redis.wait_replicas", "the embedded server has no replicas", "set 0, or name a server that has some"
        )
    yield from _of_rollout(config)
    yield from _of_http(config.rollout)
    yield from _of_preemption(config.rollout.preemption)
    if config.environment.reward_min >= config.environment.reward_max:
        yield Problem("environment.reward_max", "is not above environment.reward_min", "rewards lie between the two")
    largest = largest_group_bytes(config)
    if config.queue.group_max_bytes < largest:
        yield Problem(
            "queue.group_max_bytes",
            f"a group of rollout.group_size samples of model.max_new_tokens takes up to {largest} bytes",
            f"set {largest} or more",
        )
    yield from _of_environment(config.environment)
    source = config.prompts.source
    if config.environment.kind == "poker" and source and not source.startswith("poker:"):
        yield Problem("prompts.source", f"{source} has no hands for a poker table", "name poker:kuhn or poker:leduc")
    if config.queue.lease_s <= 2 * config.telemetry.heartbeat_s:
        yield Problem(
            "queue.lease_s",
            "a lease must outlast two heartbeats, which renew it",
            "raise it, or lower telemetry.heartbeat_s",
        )
    if sorted(set(config.weights.skips)) != list(config.weights.skips):
        yield Problem("weights.skips", f"{config.weights.skips} does not ascend", "write each once, the smallest first")
    if config.weights.folder is not None and config.weights.transport != "folder":
        what = f'is not used by weights.transport = "{config.weights.transport}"'
        yield Problem("weights.folder", what, 'set weights.transport = "folder", or leave it out')
    if config.model.init.heads % config.model.init.kv_heads:
        yield Problem("model.init.kv_heads", "does not divide model.init.heads", "choose a divisor")
    if config.model.init.head_dim % 2:
        yield Problem("model.init.head_dim", "is odd; rotary positions turn pairs", "choose an even number")


def _of_rollout(config: Config) -> Iterator[Problem]:
    s = config.staleness.s
    if config.rollout.mode in ("pull", "sync") and s:
        yield Problem(
            "rollout.mode",
            f'"{config.rollout.mode}" refreshes before every generation, which is S = 0; staleness.s is {s}',
            'set staleness.s to 0, or mode to "push-pull" or "in-flight"',
        )
    if config.rollout.mode == "sync" and config.rollout.workers != 1:
        yield Problem(
            "rollout.workers", "one worker takes turns with the learner in sync mode", "set 1, or another rollout.mode"
        )
    if config.rollout.group_size < 2:
        yield Problem(
            "rollout.group_size",
            "GRPO compares the samples of one prompt; one sample has no advantage",
            "set 2 or more",
        )
    if config.rollout.top_p <= 1 - config.learner.clip_low:
        yield Problem(
            "rollout.top_p",
            "the learner's policy is the whole distribution, the samples' is the nucleus: their ratio may be as low as "
            "top_p on fresh data, and learner.clip_low would cut it off",
            f"set top_p above {1 - config.learner.clip_low:g}; 1 makes the ratio exact",
        )


def _of_http(rollout: Rollout) -> Iterator[Problem]:
    where, used = "rollout.http", rollout.engine == "http"
    if not used:
        named = {"url": rollout.http.url, "weights_dir": rollout.http.weights_dir}
        for key in [key for key, value in named.items() if value]:
            yield Problem(f"{where}.{key}", f'is not used by engine "{rollout.engine}"', 'set engine = "http"')
        return
    if not rollout.http.url:
        yield Problem(f"{where}.url", "no server to generate", "name one, http://host:8000")
    elif not _is_address(rollout.http.url):
        yield Problem(f"{where}.url", f"{rollout.http.url} names no host and port", "name one, http://host:8000")
    if rollout.http.weights_dir is None:
        yield Problem(f"{where}.weights_dir", "no way for weights to the server", "name a folder that it sees too")
    if rollout.workers != 1:
        yield Problem("rollout.workers", "each worker needs a server of its own; one is named", "set 1")
    if rollout.metrics_port:
        yield Problem("rollout.metrics_port", "the server has its metrics at its own /metrics", "remove it")
    if rollout.temperature < LEAST_TEMPERATURE:
        yield Problem(
            "rollout.temperature",
            f"vLLM's server draws at {LEAST_TEMPERATURE} at the least",
            f"set {LEAST_TEMPERATURE} or more",
        )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _of_preemption(preemption: Preemption) -> Iterator[Problem]:
    where, watch = "rollout.preemption", preemption.watch
    if watch == "file" and preemption.file is None:
        yield Problem(f"{where}.file", "no file to watch", "name one")
    if watch != "file" and preemption.file is not None:
        yield Problem(f"{where}.file", f'is not used by watch "{watch}"', 'set watch = "file"')
    if watch not in ("aws", "gcp", "azure") and preemption.endpoint:
        yield Problem(f"{where}.endpoint", f'is not used by watch "{watch}"', 'set watch to "aws", "gcp" or "azure"')
    if watch != "azure" and preemption.acknowledge:
        yield Problem(f"{where}.acknowledge", f'is not used by watch "{watch}"', 'set watch = "azure"')


def _of_environment(environment: Environment) -> Iterator[Problem]:
    kind = environment.kind
    if kind in NAMED and ":" not in environment.function:
        yield Problem("environment.function", f'kind "{kind}" needs one', f'write "module:{NAMED[kind]}"')
    if kind not in NAMED and environment.function:
        yield Problem("environment.function", f'is not used by kind "{kind}"', 'set kind = "function", or remove it')
    if kind not in ("interactive", "verifiers") and environment.options:
        yield Problem("environment.options", f'are not used by kind "{kind}"', "remove them")


def largest_group_bytes(config: Config) -> int:
    """What a replay record can come to: 4 bytes per prompt token, 8 per other one, and its header.

    A header may only be a small part of the cap (`codec.HEADER_SHARE`): a group of many short samples needs room too.
    """
    samples = config.rollout.group_size
    header = 512 + (128 + 24 * (config.environment.most_turns - 1)) * samples
    return max(4 * config.model.max_prompt_tokens + 8 * samples * config.model.max_new_tokens + header, 16 * header)
