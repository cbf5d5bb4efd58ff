"""Refuses a model that would be trained wrongly, or not at all, by its `config.json` alone.

- Whatever is not refused is of a family whose log-probabilities and gradients the tests compare with those of
  transformers' own forward pass (`tests/learner/model/test_families.py`).
- Each refusal says why, and what to use instead. docs/models.md has the list for readers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from echo_queue.errors import Problem
from echo_queue.models.families import FAMILIES, FULL, SLIDING, Family, window_of

WHERE = "model.base"
RECURRENT = (
    "has layers with a recurrent state, which the samples of a prompt cannot share as they share its keys and values"
)
CHUNKED = "attends within chunks of the text, which the learner does not compute"
LATENT = "has latent attention, which the learner does not compute"
REASONS: Mapping[str, str] = {
    "mamba": RECURRENT, "falcon_mamba": RECURRENT, "falcon_h1": RECURRENT, "jamba": RECURRENT, "bamba": RECURRENT,
    "zamba": RECURRENT, "nemotron_h": RECURRENT, "rwkv": RECURRENT, "xlstm": RECURRENT, "recurrent_gemma": RECURRENT,
    "granitemoehybrid": RECURRENT, "kimi_linear": RECURRENT, "lfm2": RECURRENT,
    "olmo_hybrid": RECURRENT, "qwen3_next": RECURRENT, "qwen3_5": RECURRENT,
    "llama4": CHUNKED, "deepseek_v2": LATENT, "deepseek_v3": LATENT, "kimi_k2": LATENT, "minicpm3": LATENT,
}  # fmt: skip
"""Why families are refused, by the beginning of their model type."""
INSTEAD = "use a model of one of these types: " + ", ".join(FAMILIES)


def model_refusals(config: Mapping[str, Any], longest: int) -> Iterator[Problem]:
    """Yields the reason why the model of this `config.json` is not trained, if there is one.

    `longest`: the most tokens of a prompt and its completion together. The first reason is the only one.
    """
    kind = str(config.get("model_type"))
    for what, fix in _reasons(config, kind, longest):
        yield Problem(WHERE, f"the model, of type {kind}, {what}", fix)
        return


def too_long(longest: int, taken: int | None) -> Iterator[Problem]:
    """Yields a problem if a prompt and its completion, of `longest` tokens together, are more than the model takes.

    `taken`: what its `config.json` says of that, if anything.
    """
    if taken is not None and taken < longest:
        yield Problem(
            "model.max_new_tokens",
            f"prompt and completion together may have {longest} tokens, but the model takes at most {taken}",
            f"lower model.max_prompt_tokens + model.max_new_tokens to {taken}",
        )


def _reasons(config: Mapping[str, Any], kind: str, longest: int) -> Iterator[tuple[str, str]]:
    for start, reason in REASONS.items():
        if kind.startswith(start):
            yield reason, INSTEAD
    if config.get("text_config") or config.get("vision_config"):
        yield "is multimodal, and only text models are trained", "use the family's text model, such as gemma-3-1b-it"
    if method := _quantised(config):
        fix = "use a copy of the model in bfloat16, whose config.json has no quantization_config"
        yield f"is quantised ({method}), and rounded weights cannot take small steps", fix
    if kind not in FAMILIES:
        yield "is not one of those whose training is checked against transformers", INSTEAD
        return
    yield from _of_layers(config, FAMILIES[kind])
    yield from _of_rotation(config, longest)


def _quantised(config: Mapping[str, Any]) -> str:
    """Returns the method by which the files are quantised; "" if they are not."""
    settings = config.get("quantization_config")
    return str(settings.get("quant_method", "of no known method")) if isinstance(settings, Mapping) else ""


def _of_layers(config: Mapping[str, Any], family: Family) -> Iterator[tuple[str, str]]:
    types, window = set(config.get("layer_types") or ()), window_of(config, family)
    if others := types - {FULL, SLIDING}:
        yield f"has layers of {', '.join(sorted(map(str, others)))}, which the learner does not compute", INSTEAD
    if window is not None and window < 1:
        yield f"has a sliding_window of {window}", "correct its config.json"
    if SLIDING in types and window is None:
        fix = "correct its config.json: set sliding_window (and use_sliding_window), or write full_attention"
        yield "names layers of sliding_attention in layer_types, and no window for them", fix
    if family.sliding == "none" and config.get("sliding_window") is not None:
        fix = "remove sliding_window from its config.json if the model was trained without it"
        yield f"has a sliding_window of {config['sliding_window']}, which transformers ignores for this type", fix
    if family.sliding == "all" and window is not None and FULL in types:
        fix = "remove layer_types, or sliding_window, from its config.json"
        yield "names layers of full_attention, and transformers gives every layer of this type the window", fix
    if config.get("use_bidirectional_attention"):
        yield "attends to what comes after a token as well (use_bidirectional_attention)", INSTEAD


def _of_rotation(config: Mapping[str, Any], longest: int) -> Iterator[tuple[str, str]]:
    """Refuses rotations that depend on the length of a text: texts of one micro-batch share them, and must not."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for part in (rope, *(one for one in rope.values() if isinstance(one, Mapping))):
        kind = str(part.get("rope_type", part.get("type", "default")))
        limits = (config.get("original_max_position_embeddings"), part.get("original_max_position_embeddings"))
        limit = next(filter(None, (*limits, config.get("max_position_embeddings"))), longest)
        if kind in ("longrope", "su", "dynamic") and longest > limit:
            what = f"rotates texts of more than {limit} tokens in another way ({kind}), and yours have up to {longest}"
            yield what, f"lower model.max_prompt_tokens + model.max_new_tokens to {limit}"


def has_experts(config: Mapping[str, Any]) -> bool:
    """Returns whether a model that is trained is a mixture of experts."""
    return FAMILIES[str(config.get("model_type"))].sparse != "none"
