"""Finds combinations of a configuration's values that cannot work, though each value is valid alone."""

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from echo_queue.config import Config, Environment, Evaluation, Learner, Model, Prompts, Rollout, Store
from echo_queue.config.keys import OnlyWith, Section, keys_of, value_of
from echo_queue.config.loss_checks import loss_contradictions, sample_contradictions
from echo_queue.config.model import NAMED
from echo_queue.config.rewards import reward_contradictions
from echo_queue.config.toml_text import value_text
from echo_queue.errors import Problem

LEAST_TEMPERATURE = 0.01
COMPONENTS_MAX = 16
"""The most components of a mixture: each update's record has the figures of all of them."""
WITH_MIXTURE = ("chunk",)
"""The keys of [prompts] that hold for the prompts of components as well."""


def contradictions(config: Config) -> Iterator[Problem]:
    """Yields every contradiction in `config`."""
    s, kappa = config.staleness.s, config.staleness.kappa
    if kappa != "auto" and kappa > s + 1:
        updates = f"{s + 1} updates" if s else "one update"
        yield Problem(
            "staleness.kappa",
            f"κ = {kappa} with S = {s}: after {updates} without a publication nothing is fresh enough to train",
            f"set kappa to {s + 1} or less, or s to {kappa - 1} or more",
        )
    if config.redis.url == "embedded" and config.redis.wait_replicas:
        yield Problem(
            "redis.wait_replicas", "the embedded server has no replicas", "set 0, or name a server with replicas"
        )
    yield from _store(config.store)
    yield from _rollout(config)
    yield from _http(config.rollout)
    if config.rollout.preemption.watch == "file" and config.rollout.preemption.file is None:
        yield Problem("rollout.preemption.file", 'is missing, but watch = "file" needs a file', "name one")
    largest = largest_group_bytes(config)
    if config.queue.group_max_bytes < largest:
        yield Problem(
            "queue.group_max_bytes",
            f"a group of rollout.group_size samples of model.max_new_tokens takes up to {largest} bytes",
            f"set {largest} or more",
        )
    yield from _environment(config.environment)
    yield from reward_contradictions(config.environment, config.model.max_new_tokens)
    yield from _mixture(config)
    yield from _evaluations(config)
    yield from _schedule(config.learner)
    yield from loss_contradictions(config)
    yield from sample_contradictions(config)
    yield from _selection(config)
    yield from unused(config)
    if config.queue.lease_s <= 2 * config.telemetry.heartbeat_s:
        yield Problem(
            "queue.lease_s",
            "a lease must outlast two heartbeats, since heartbeats renew it",
            "raise it, or lower telemetry.heartbeat_s",
        )
    if sorted(set(config.weights.skips)) != list(config.weights.skips):
        yield Problem(
            "weights.skips", f"{config.weights.skips} is not in ascending order", "write each once, the smallest first"
        )
    if config.model.init.heads % config.model.init.kv_heads:
        yield Problem("model.init.kv_heads", "does not divide model.init.heads", "choose a divisor")
    if config.model.init.head_dim % 2:
        yield Problem("model.init.head_dim", "is odd; rotary positions rotate pairs", "choose an even number")


def _store(store: Store) -> Iterator[Problem]:
    name = store.bucket.removeprefix("s3://").strip("/").partition("/")[0]
    if name != store.bucket:
        what = f"{store.bucket} is more than the name of a bucket"
        yield Problem("store.bucket", what, f'write "{name}" alone; run.name begins the keys in it')
    if store.url == "embedded":
        return
    scheme, _, rest = store.url.partition("://")
    if scheme == "s3" and rest:
        what = f"{store.url} names a bucket, and no server"
        yield Problem("store.url", what, "write https://host (docs/configuration.md), and the bucket in store.bucket")
    host, _, path = rest.strip("/").partition("/")
    if path.rpartition("/")[2] == name or host.startswith(f"{name}.s3"):
        yield Problem("store.url", f"{store.url} has the bucket's name in it", "leave it out: store.bucket has it")


def _rollout(config: Config) -> Iterator[Problem]:
    s = config.staleness.s
    if config.rollout.mode in ("pull", "sync") and s:
        yield Problem(
            "rollout.mode",
            f'"{config.rollout.mode}" takes new weights before every generation, which is S = 0; staleness.s is {s}',
            'set staleness.s to 0, or mode to "push-pull" or "in-flight"',
        )
    if config.rollout.mode == "sync" and config.rollout.workers != 1:
        yield Problem(
            "rollout.workers",
            "in sync mode a single worker takes turns with the learner",
            "set 1, or choose another rollout.mode",
        )
    if config.rollout.group_size < 2:
        yield Problem(
            "rollout.group_size",
            "GRPO compares the samples of one prompt; one sample has no advantage",
            "set 2 or more",
        )


def _http(rollout: Rollout) -> Iterator[Problem]:
    where = "rollout.http"
    if rollout.engine != "http":
        return
    if not rollout.http.url:
        yield Problem(f"{where}.url", 'is missing, but engine = "http" needs a server', "name one, http://host:8000")
    elif not _is_address(rollout.http.url):
        yield Problem(f"{where}.url", f"{rollout.http.url} has no host and port", "write http://host:8000")
    if rollout.http.weights_dir is None:
        yield Problem(
            f"{where}.weights_dir", "is missing: weights cannot reach the server", "name a folder that the server sees"
        )
    if rollout.workers != 1:
        yield Problem("rollout.workers", "each worker needs a server of its own, and one server is named", "set 1")
    if rollout.temperature < LEAST_TEMPERATURE:
        yield Problem(
            "rollout.temperature",
            f"vLLM's server samples at no temperature below {LEAST_TEMPERATURE}",
            f"set {LEAST_TEMPERATURE} or more",
        )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _schedule(learner: Learner) -> Iterator[Problem]:
    where, length = "learner.schedule_updates", learner.schedule_updates or learner.max_updates
    if learner.schedule == "constant":
        return
    if not length:
        what = f'is 0, and max_updates as well: schedule "{learner.schedule}" has no end to fall to'
        yield Problem(where, what, 'set one of them, or schedule to "constant"')
    elif length <= learner.warmup_updates:
        what = f"the rate would fall until update {length}, but the warm-up lasts until {learner.warmup_updates}"
        yield Problem(where, what, f"set {learner.warmup_updates + 1} or more, or a shorter warm-up")


def _selection(config: Config) -> Iterator[Problem]:
    if config.selection.refill and config.learner.zero_variance == "keep":
        what = (
            'fills an update up with groups that differ in reward, and learner.zero_variance = "keep" counts the others'
        )
        yield Problem("selection.refill", what, 'set learner.zero_variance = "skip"')
    paired = config.selection.pairs_kept < 1 or config.selection.shuffle_rounds
    if paired and config.rollout.group_size % 2:
        what = f"is {config.rollout.group_size}, and selection pairs the samples of a group: one would never be trained"
        yield Problem("rollout.group_size", what, "choose an even number")
    if config.selection.curriculum == "dopr" and config.learner.batch_groups != 1:
        what = f'is {config.learner.batch_groups}; selection.curriculum = "dopr" trains one prompt at a time'
        yield Problem("learner.batch_groups", what, 'set 1, or curriculum = "mopps"')
    if config.selection.reward_failure >= config.selection.reward_success:
        yield Problem("selection.reward_success", "is not above selection.reward_failure", "raise it")
    if config.selection.reuse_groups and not config.staleness.s:
        what = "trains groups again after their update, and staleness.s = 0 allows no lag"
        yield Problem("selection.reuse_groups", what, "set staleness.s to 1 or more, or reuse_groups to 0")


def _mixture(config: Config) -> Iterator[Problem]:
    """Yields what is wrong with each component, by itself and beside the others and the rest of the configuration."""
    model, names = config.model, [component.name for component in config.mixture]
    for number, component in enumerate(config.mixture):
        where, name = f"mixture[{number}]", component.name
        if name in names[:number]:
            what = f"{name} is the name of another component"
            yield Problem(f"{where}.name", what, "choose another name, or write the prompts of both into one source")
        for key in ("max_prompt_tokens", "max_new_tokens"):
            given, most = getattr(component, key), getattr(model, key)
            if given > most:
                what = f"{given} is more than model.{key}, {most}"
                yield Problem(f"{where}.{key}", what, f"set {most} or less, or raise model.{key}; 0 stands for {most}")
        if component.environment is not None:  # else it is the run's own, of which the same is said once
            rewards = reward_contradictions(component.environment, component.limit(model))
            yield from (_within(where, problem) for problem in (*_environment(component.environment), *rewards))
    if not config.mixture:
        return
    if len(names) > COMPONENTS_MAX:
        what = f"has {len(names)} components, and the record of an update has room for {COMPONENTS_MAX}"
        yield Problem("mixture", what, "write several kinds of prompts into one source")
    for key in Prompts.model_fields:
        if key not in WITH_MIXTURE and getattr(config.prompts, key) != config.prompts.left_out(key):
            what = "is not used with [[mixture]], whose components stand in place of [prompts]"
            yield Problem(f"prompts.{key}", what, "write it in a component, or leave [[mixture]] out")
    if config.environment != Environment() and not config.uses_environment:
        what = "is not used: each component, and each evaluation, has an environment of its own"
        yield Problem("environment", what, "remove it, or the environment of those that are to have it")


def _evaluations(config: Config) -> Iterator[Problem]:
    """Yields what is wrong with each evaluation, by itself and beside the others."""
    longest, names = config.model.max_new_tokens, [evaluation.name for evaluation in config.evaluation]
    if config.export.best and config.export.best not in names:
        fix = f"name one of {', '.join(names)}" if names else "write an [[evaluation]] of that name"
        yield Problem("export.best", f"no evaluation is called {config.export.best}", fix)
    for number, evaluation in enumerate(config.evaluation):
        where, name = f"evaluation[{number}]", evaluation.name
        if name in names[:number]:
            yield Problem(f"{where}.name", f"{name} is the name of another evaluation", "choose another name")
        elif (component := config.component_of(name)) is not None:
            what = f"{name} is the name of a set of component {component.name}, and what is held out is never trained"
            yield Problem(f"{where}.name", what, f'choose another name, such as "held-out-{component.name}"')
        elif name == config.prompts.set and config.prompts.source:
            what = f"{name} is the name of the set to train on, prompts.set, and what is held out is never trained"
            yield Problem(f"{where}.name", what, f'choose another name, such as "held-out-{name}"')
        if evaluation.max_new_tokens > longest:
            what = f"{evaluation.max_new_tokens} is more than model.max_new_tokens, {longest}"
            yield Problem(f"{where}.max_new_tokens", what, f"set {longest} or less; 0 stands for {longest}")
        largest = largest_answers_bytes(config, evaluation)
        if config.queue.group_max_bytes < largest:
            what = f"{evaluation.samples} answers to one prompt take up to {largest} bytes"
            yield Problem(f"{where}.samples", what, f"set queue.group_max_bytes to {largest} or more, or fewer samples")
        if config.rollout.engine == "http" and 0 < evaluation.temperature < LEAST_TEMPERATURE:
            what = f"vLLM's server samples at no temperature between 0 and {LEAST_TEMPERATURE}"
            yield Problem(f"{where}.temperature", what, f"set 0, or {LEAST_TEMPERATURE} or more")
        environment = evaluation.environment or config.environment
        if evaluation.environment is not None:  # else it is the run's own, of which the same is said once
            rewards = reward_contradictions(environment, evaluation.limit(config.model))
            yield from (_within(where, problem) for problem in (*_environment(environment), *rewards))


def _within(table: str, problem: Problem) -> Problem:
    """Returns the problem of a key as one of that table of a list of sections."""
    return replace(problem, where=f"{table}.{problem.where}")


def _environment(environment: Environment) -> Iterator[Problem]:
    kind = environment.kind
    if environment.reward_min >= environment.reward_max:
        yield Problem("environment.reward_max", "is not above environment.reward_min", "raise it: rewards lie between")
    tables = kind == "function" and environment.rewards
    if kind in NAMED and not tables and ":" not in environment.function:
        given, named = environment.function, f"module:{NAMED[kind]}"
        what = f'is "{given}", in which no colon divides the module from the name' if given else "is missing"
        written = ":".join(given.rsplit(".", 1)) if given.removesuffix(".py").count(".") else named
        yield Problem("environment.function", f'{what}, but kind = "{kind}" needs one', f'write "{written}"')


def unused(config: Config) -> Iterator[Problem]:
    """Yields every key that has another value than if it were left out, although another key makes nothing of it."""
    yield from _unused(config)
    for number, evaluation in enumerate(config.evaluation):
        yield from (_within(f"evaluation[{number}]", problem) for problem in _unused(evaluation))
    for number, component in enumerate(config.mixture):
        yield from (_within(f"mixture[{number}]", problem) for problem in _unused(component))


def _unused(table: Section) -> Iterator[Problem]:
    """`table`: the configuration, or one of a list of sections, in which all that its keys depend on is."""
    for key in keys_of(type(table)):
        if key.listed or not key.conditions or (section := value_of(table, key.parent)) is None:
            continue
        name = key.path.rpartition(".")[2]
        if getattr(section, name) == section.left_out(name):
            continue
        if not any(condition.holds(table) for condition in key.conditions):
            yield Problem(key.path, *_needs(table, key.parent, key.conditions[0]))


def _needs(table: Section, section: str, condition: OnlyWith) -> tuple[str, str]:
    """Says what a key is not used with, and what to do; `section`: that of the key."""
    other, value = condition.path.removeprefix(f"{section}."), value_of(table, condition.path)
    if not condition.values:
        return f"is not used while {other} is {value_text(value)}", f"set {other}, or remove the key"
    wanted = " or ".join(map(value_text, condition.values))
    return f"is not used with {other} = {value_text(value)}", f"set {other} to {wanted}, or remove the key"


def largest_group_bytes(config: Config) -> int:
    """The largest size of a replay record: 4 bytes per prompt token, 8 per other token, and its header.

    A header may take only a small part of the cap (`group_codec.HEADER_SHARE`), so a group of many short samples needs
    a cap of 16 times its header.
    """
    limits = [(one.environment or config.environment, one.limit(config.model)) for one in config.mixture]
    limits = limits or [(config.environment, config.model.max_new_tokens)]
    return max(_largest_bytes(config.model, scored_by, config.rollout.group_size, most) for scored_by, most in limits)


def largest_answers_bytes(config: Config, evaluation: Evaluation) -> int:
    """The largest size of a record with the answers to one prompt of an evaluation."""
    environment = evaluation.environment or config.environment
    return _largest_bytes(config.model, environment, evaluation.samples, evaluation.limit(config.model))


def _largest_bytes(model: Model, environment: Environment, samples: int, new_tokens: int) -> int:
    rewards = len(environment.reward_functions)
    header = 512 + 80 * rewards + (128 + 24 * (environment.most_turns - 1 + rewards)) * samples
    return max(4 * model.max_prompt_tokens + 8 * samples * new_tokens + header, 16 * header)
