"""Refuses runs that are hopeless by the estimate or by their model, before any process starts.

`config check`, `run` and `learner` call it. It reads only what is on this machine: where the model's config.json is
not, what depends on it goes unchecked here; the learner checks the model again once it has the file.
"""

import os
from collections.abc import Iterator, Mapping

from echo_queue.capacity.estimate.lora import FUSED, linear_layers
from echo_queue.capacity.estimate.training_time import t_gen_s
from echo_queue.config import Config, Lora
from echo_queue.errors import ConfigError, Problem
from echo_queue.models.config_file import document, model_shape
from echo_queue.models.devices import learner_is_on_cpu
from echo_queue.models.refusals import has_experts, model_refusals, too_long
from echo_queue.models.shape import ModelShape

LARGEST_ON_CPU = 2_000_000_000
"""Parameters. An update of more takes hours on a CPU."""


def refusals(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Yields why this run would fail although each of its settings is valid."""
    first_group_s = t_gen_s(config, config.rollout.tokens_per_s)
    if first_group_s >= config.queue.stall_deadline_s:
        yield Problem(
            "queue.stall_deadline_s",
            f"ends after {config.queue.stall_deadline_s:g} s; the first group may take {first_group_s:,.0f} s, for "
            f"{config.model.max_new_tokens:,} new tokens at {config.rollout.tokens_per_s:g} a second",
            f"set {2 * first_group_s:.0f} or more, lower model.max_new_tokens, or set rollout.tokens_per_s to what "
            "your engine makes of one sample",
        )
    yield from _of_model(config, environ)
    yield from _of_shape(config, environ)


def _of_model(config: Config, environ: Mapping[str, str]) -> Iterator[Problem]:
    try:
        found = document(config, environ)
    except ConfigError as error:
        yield from error.problems
        return
    if found is None:
        return
    longest = config.model.max_prompt_tokens + config.model.max_new_tokens
    problems = tuple(model_refusals(found, longest))
    yield from problems
    if problems:
        return
    yield from too_long(longest, found.get("max_position_embeddings"))
    if has_experts(found):
        yield from _of_mixture(config, found["model_type"], environ)
    elif config.learner.freeze_router:
        what = f"is set, but the model, of type {found['model_type']}, is no mixture of experts"
        yield Problem("learner.freeze_router", what, "remove it")


def _of_mixture(config: Config, kind: str, environ: Mapping[str, str]) -> Iterator[Problem]:
    if config.learner.deterministic and not learner_is_on_cpu(config, environ):
        what = f"is set, and the model, of type {kind}, counts its experts' tokens in a way that torch has no "
        what += "deterministic algorithm for on a GPU (torch.histc)"
        yield Problem("learner.deterministic", what, "remove it, or train a model without experts")
    if config.rollout.engine != "transformers":
        yield Problem(
            "rollout.engine",
            f"the model, of type {kind}, is a mixture of experts, which vLLM stores otherwise than the learner "
            "publishes it, so that new weights could not be put in place",
            'set rollout.engine = "transformers"',
        )
    if config.model.lora.rank and config.model.lora.target_modules == "all-linear":
        what = f'is "all-linear", and the model, of type {kind}, has experts and routers, which no adapter fits'
        yield Problem("model.lora.target_modules", what, 'write ["q_proj", "k_proj", "v_proj", "o_proj"]')


def _of_shape(config: Config, environ: Mapping[str, str]) -> Iterator[Problem]:
    try:
        shape = model_shape(config, environ=environ)
    except ConfigError:
        return
    yield from _of_device(config, environ, shape)
    yield from _of_lora(config.model.lora, shape)


def _of_lora(lora: Lora, shape: ModelShape) -> Iterator[Problem]:
    known, named = linear_layers(shape), lora.target_modules
    for name in () if named == "all-linear" else sorted({*named} - known.keys() - FUSED.keys()):
        what = f"{name} is no linear layer of the model's decoder"
        yield Problem("model.lora.target_modules", what, f"name some of {', '.join(known)}")


def _of_device(config: Config, environ: Mapping[str, str], shape: ModelShape) -> Iterator[Problem]:
    parameters = shape.total
    if config.learner.allow_cpu or not learner_is_on_cpu(config, environ):
        return
    if parameters > LARGEST_ON_CPU:
        yield Problem(
            "learner.device",
            f"the model has {parameters / 1e9:.1f} billion parameters, and the learner would train it on a CPU",
            'set it to "cuda" if the learner runs on another machine with a GPU, or learner.allow_cpu to true',
        )
