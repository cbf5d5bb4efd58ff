"""The shape of a model, from its `config.json` alone: how many parameters it has, and which of them a token uses.

- The counts are those of the classes of transformers, to the last parameter; a tied head counts once.
- A model type that is not in `FAMILIES` is refused, because its layers may hold more than these counts know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echo_queue.documents import printed
from echo_queue.errors import ConfigError, Problem
from echo_queue.models.families import FAMILIES, Family, sliding_layers, window_of

MATMUL, ATTENTION = 6, 12
"""Operations that train a token: for each weight that it is multiplied with, and for each query and key that meet, a
layer and a dimension of them (`echo_queue.capacity.estimate.training_time`)."""
FLASH_STEP, FLASH_LARGEST = 8, 256
"""The widths of the heads that flash attention on GPUs computes: multiples of the first, up to the second."""


def flash_width(head_dim: int) -> bool:
    """Returns whether flash attention on GPUs computes heads of this width (`torch.nn.attention.varlen`)."""
    return head_dim % FLASH_STEP == 0 and head_dim <= FLASH_LARGEST


@printed("embedding", "active", parameters="total")
@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder. `sparse_layers` of its layers have experts; the others have an MLP of `intermediate`.

    `sliding_layers` of its layers see no more than `window` tokens.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    norms: int = 2
    """Norms of the hidden states in one layer."""
    qk_norm: int = 0
    """Elements of the norms of queries and keys in one layer; 0 if there are none."""
    attention_biases: int = 0
    """Elements of the attention's biases in one layer, its sinks among them."""
    mlp_biases: int = 0
    """Elements of the MLP's biases in one layer."""
    sliding_layers: int = 0
    window: int = 0
    capped: bool = False
    """The attention's scores have a soft cap."""
    sinks: bool = False
    sparse_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    expert_biases: int = 0
    """Elements of one expert's biases and of its router's bias."""

    @property
    def queries(self) -> int:
        """The width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """The width of all key heads together, which is that of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding."""
        return self.vocabulary * self.hidden

    @property
    def total(self) -> int:
        """All parameters; a head that is tied to the embedding counts once."""
        head = 0 if self.tied else self.embedding
        return self.embedding + head + self.layers * self._layer_besides_mlp + self._mlps(self.experts) + self.hidden

    @property
    def active(self) -> int:
        """The parameters that one token uses: all but the experts that it is not routed to."""
        return self.total - self._mlps(self.experts) + self._mlps(self.experts_per_token)

    @property
    def matmul(self) -> int:
        """The weights that one token is multiplied with, the head's included, norms, biases and embedding left out."""
        return self.layers * self._attention + self._mlps(self.experts_per_token, biases=False) + self.embedding

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest layer."""
        sparse = self._sparse(self.experts) if self.sparse_layers else 0
        dense = self._dense + self.mlp_biases if self.sparse_layers < self.layers else 0
        return self._layer_besides_mlp + max(sparse, dense)

    @property
    def _attention(self) -> int:
        return self.hidden * (2 * self.queries + 2 * self.keys)

    @property
    def _layer_besides_mlp(self) -> int:
        return self._attention + self.attention_biases + self.norms * self.hidden + self.qk_norm

    @property
    def _dense(self) -> int:
        return 3 * self.hidden * self.intermediate

    def _sparse(self, experts: int, *, biases: bool = True) -> int:
        """Counts so many experts and the whole router; of its bias, the elements of these experts."""
        expert = 3 * self.hidden * self.expert_intermediate + (self.expert_biases if biases else 0)
        return self.hidden * self.experts + expert * experts

    def _mlps(self, experts: int, *, biases: bool = True) -> int:
        dense = self._dense + (self.mlp_biases if biases else 0)
        sparse = self._sparse(experts, biases=biases)
        return (self.layers - self.sparse_layers) * dense + self.sparse_layers * sparse


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """Reads the content of a `config.json`. Raises `ConfigError`, which names `where`, for a model it does not know."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        what = f"model type {config.get('model_type')!r} is not one of {', '.join(sorted(FAMILIES))}"
        fix = "estimate a model of one of these types; for others no estimate is made"
        raise ConfigError(Problem(where, what, fix))
    try:
        return _shape(config, family)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        what = f"is not a model's config.json: {type(error).__name__} {error}"
        raise ConfigError(Problem(where, what, "name the config.json of a model that transformers can load")) from None


def _shape(config: Mapping[str, Any], family: Family) -> ModelShape:
    hidden, heads, layers = (int(config[key]) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or family.head_dim or hidden // heads)
    intermediate, experts = int(config["intermediate_size"]), _experts(config)
    sparse = _sparse_layers(config, family, layers) if experts else 0
    queries, keys = heads * head_dim, kv_heads * head_dim
    expert = int(config["moe_intermediate_size"]) if sparse and family.sparse == "qwen" else intermediate
    sinks = family.sparse == "gpt_oss"
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        norms=family.norms,
        qk_norm={"none": 0, "head": 2 * head_dim, "width": queries + keys}[family.qk_norm],
        attention_biases=_attention_biases(config, family, queries, keys, hidden) + (heads if sinks else 0),
        mlp_biases=2 * intermediate + hidden if family.mlp_bias and config.get("mlp_bias") else 0,
        sliding_layers=sliding_layers(config, family, layers),
        window=window_of(config, family) or 0,
        capped=family.cap is not None and config.get("attn_logit_softcapping", family.cap) is not None,
        sinks=sinks,
        sparse_layers=sparse,
        experts=experts if sparse else 0,
        experts_per_token=int(config["num_experts_per_tok"]) if sparse else 0,
        expert_intermediate=expert if sparse else 0,
        expert_biases=2 * expert + hidden + 1 if sparse and sinks else 0,
    )


def _attention_biases(config: Mapping[str, Any], family: Family, queries: int, keys: int, hidden: int) -> int:
    if family.biased:
        return queries + 2 * keys
    obeyed = family.attention_bias is not None and config.get("attention_bias", family.attention_bias)
    return queries + 2 * keys + hidden if obeyed else 0


def _experts(config: Mapping[str, Any]) -> int:
    return int(config.get("num_experts", config.get("num_local_experts", 0)) or 0)


def _sparse_layers(config: Mapping[str, Any], family: Family, layers: int) -> int:
    """Counts the layers with experts, of Qwen3-MoE by the rule of transformers' decoder layer."""
    if family.sparse != "qwen":
        return 0 if family.sparse == "none" else layers
    step, dense = int(config.get("decoder_sparse_step", 1)), config.get("mlp_only_layers") or []
    return sum(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
