"""The model types that are trained, each with the traits that its `config.json` does not state.

The defaults are those of transformers' configuration classes, for a file that leaves a key out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Family:
    """The traits of a model type.

    `head_dim`: the default; 0 stands for hidden size / heads. `tied`: the default of `tie_word_embeddings`. `norms`:
    of a layer's hidden states. `qk_norm`: whether queries and keys have a norm for each head, or one for their width.
    `biased`: q, k and v have a bias whatever the file says. `attention_bias`: the default of that key for a bias of q,
    k, v and o; None if the key is not obeyed. `mlp_bias`: whether the key of that name is obeyed.

    `sliding`: which layers have a window: none, all, or those that `layer_types` names; without that key all but each
    `period`-th, those from `max_window_layers` on ("late"), or those without rotation ("unrotated"). `window`: the
    default of `sliding_window`. `on_demand`: windows need `use_sliding_window`.

    `cap`: the default of `attn_logit_softcapping`; None if the key is not obeyed.

    `sparse`: the experts are those of Qwen3-MoE (some layers may be dense), of Mixtral (`intermediate_size` is an
    expert's) or of gpt-oss (as Mixtral's, with biases, and with a sink for each head).
    """

    head_dim: int = 0
    tied: bool = False
    norms: int = 2
    qk_norm: Literal["none", "head", "width"] = "none"
    biased: bool = False
    attention_bias: bool | None = None
    mlp_bias: bool = False
    sliding: Literal["none", "all", "period", "late", "unrotated"] = "none"
    period: int = 0
    window: int | None = None
    on_demand: bool = False
    cap: float | None = None
    sparse: Literal["none", "qwen", "mixtral", "gpt_oss"] = "none"


FAMILIES: Mapping[str, Family] = {
    "gemma": Family(head_dim=256, tied=True, attention_bias=False),
    "gemma2": Family(
        head_dim=256, tied=True, norms=4, attention_bias=False, sliding="period", period=2, window=4_096, cap=50.0
    ),
    "gemma3_text": Family(
        head_dim=256, tied=True, norms=4, qk_norm="head", attention_bias=False, sliding="period", period=6, window=4_096
    ),
    "gpt_oss": Family(head_dim=64, attention_bias=True, sliding="period", period=2, window=128, sparse="gpt_oss"),
    "llama": Family(attention_bias=False, mlp_bias=True),
    "mistral": Family(sliding="all", window=4_096),
    "mixtral": Family(sliding="all", sparse="mixtral"),
    "olmo2": Family(qk_norm="width", attention_bias=False),
    "olmo3": Family(qk_norm="width", attention_bias=False, sliding="period", period=4, window=4_096),
    "phi3": Family(sliding="all"),
    "qwen2": Family(biased=True, sliding="late", window=4_096, on_demand=True),
    "qwen3": Family(
        head_dim=128, qk_norm="head", attention_bias=False, sliding="late", window=4_096, on_demand=True
    ),
    "qwen3_moe": Family(
        qk_norm="head", attention_bias=False, sliding="all", window=4_096, on_demand=True, sparse="qwen"
    ),
    "smollm3": Family(tied=True, attention_bias=False, mlp_bias=True, sliding="unrotated", on_demand=True),
}  # fmt: skip


def window_of(config: Mapping[str, Any], family: Family) -> int | None:
    """Returns the tokens that a sliding layer sees; None if no layer has a window."""
    if family.sliding == "none" or (family.on_demand and not config.get("use_sliding_window", False)):
        return None
    window = config.get("sliding_window", family.window)
    return None if window is None else int(window)


def sliding_layers(config: Mapping[str, Any], family: Family, layers: int) -> int:
    """Counts the layers that have a window, by the rules of transformers' configuration classes."""
    if window_of(config, family) is None:
        return 0
    if family.sliding == "all":
        return layers
    if types := config.get("layer_types"):
        return sum(kind == SLIDING for kind in types)
    if family.sliding == "late":
        return max(0, layers - int(config.get("max_window_layers", 28)))
    if family.sliding == "unrotated":
        every = int(config.get("no_rope_layer_interval", 4))
        rotated = config.get("no_rope_layers") or [(layer + 1) % every for layer in range(layers)]
        return sum(not layer for layer in rotated)
    period = int(config.get("sliding_window_pattern", family.period))  # Gemma 3 alone has this key
    return sum((layer + 1) % period != 0 for layer in range(layers))
