"""The shape of a model, from its `config.json` alone: how many parameters it has, and which of them a token uses.

- The counts are those of the classes of transformers, to the last parameter; a tied head counts once.
- A model type that is not in `FAMILIES` is refused, because its layers may hold more than these counts know.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echo_queue.errors import ConfigError, Problem


@dataclass(frozen=True)
class Family:
    """The traits of a model type that its `config.json` does not state.

    `head_dim`: the default; 0 stands for hidden size / heads. `biased`: q, k and v have a bias whatever the file says.
    `attention_bias`, `mlp_bias`: whether the key of that name is obeyed; a bias of attention is one of q, k, v and o.
    """

    qk_norm: bool = False
    head_dim: int = 0
    biased: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False


FAMILIES: Mapping[str, Family] = {
    "qwen3": Family(qk_norm=True, head_dim=128, attention_bias=True),
    "qwen3_moe": Family(qk_norm=True, attention_bias=True),
    "qwen2": Family(biased=True),
    "llama": Family(attention_bias=True, mlp_bias=True),
    "mistral": Family(),
}


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder. `sparse_layers` of its layers have experts; the others have an MLP of `intermediate`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    attention_biases: int = 0
    """Elements of the attention's biases in one layer."""
    mlp_biases: int = 0
    """Elements of the MLP's biases in one layer."""
    sparse_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0

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
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return self._attention + self.attention_biases + norms

    @property
    def _dense(self) -> int:
        return 3 * self.hidden * self.intermediate

    def _sparse(self, experts: int) -> int:
        router = self.hidden * self.experts
        return router + 3 * self.hidden * self.expert_intermediate * experts

    def _mlps(self, experts: int, *, biases: bool = True) -> int:
        dense = self._dense + (self.mlp_biases if biases else 0)
        return (self.layers - self.sparse_layers) * dense + self.sparse_layers * self._sparse(experts)


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
    intermediate, sparse = int(config["intermediate_size"]), _sparse_layers(config, layers)
    biases = 0
    if family.biased:
        biases = (heads + 2 * kv_heads) * head_dim
    elif family.attention_bias and config.get("attention_bias"):
        biases = (heads + 2 * kv_heads) * head_dim + hidden
    return ModelShape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=family.qk_norm,
        attention_biases=biases,
        mlp_biases=2 * intermediate + hidden if family.mlp_bias and config.get("mlp_bias") else 0,
        sparse_layers=sparse,
        experts=_experts(config) if sparse else 0,
        experts_per_token=int(config["num_experts_per_tok"]) if sparse else 0,
        expert_intermediate=int(config["moe_intermediate_size"]) if sparse else 0,
    )


def _experts(config: Mapping[str, Any]) -> int:
    return int(config.get("num_experts", config.get("num_local_experts", 0)) or 0)


def _sparse_layers(config: Mapping[str, Any], layers: int) -> int:
    """Counts the layers with experts, by the rule of transformers' Qwen3-MoE decoder layer."""
    step, dense = int(config.get("decoder_sparse_step", 1)), config.get("mlp_only_layers") or []
    if not _experts(config):
        return 0
    return sum(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
