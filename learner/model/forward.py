"""Log-probabilities of completion tokens, with each prompt computed once for all of its samples.

- The result equals a plain forward pass over prompt + completion, gradients included, as the tests check.
- Linear layers see packed tokens without padding; only attention cuts rectangles out of them.
- The head is computed only where the next token is one that the model drew, in pieces if its logits would be large.
- `prepare_model` refuses a model for which this would not hold.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

from echo_queue.errors import ConfigError, Problem
from learner.micro_batches import MicroBatch, Packing, PromptSamples, SampleRow, Update, micro_batches

ATTENTION = "echo_shared_prompts"
LOGITS_AT_ONCE = 1 << 24
"""64 MiB of float32. More logits are computed piece by piece, and a second time for the gradient."""


class Scored(NamedTuple):
    """Scores of the tokens that the model drew, [K] float32: log-probability, and the distribution's entropy (without
    gradient)."""

    logprobs: Tensor
    entropy: Tensor


def score(model: PreTrainedModel, batch: MicroBatch, temperature: float) -> Scored:
    """Returns log softmax(logits / temperature) at each token that the model drew. `model`: from `prepare_model`.

    At top_p = 1 this is the distribution that engines sample from. Below 1, an engine's log-probabilities are those of
    the nucleus, and the ratio to them is the importance weight of the uncut policy; on-policy it is in [top_p, 1].
    """
    output = model.base_model(
        batch.tokens.unsqueeze(0), position_ids=batch.positions.unsqueeze(0), packing=batch.packing, use_cache=False
    )
    hidden = output.last_hidden_state[0].index_select(0, batch.outputs)
    head = model.get_output_embeddings()
    rows = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    if len(hidden) <= rows:
        return _token_scores(head, hidden, batch.targets, temperature)
    pieces = [
        checkpoint(_token_scores, head, part, targets, temperature, use_reentrant=False)
        for part, targets in zip(hidden.split(rows), batch.targets.split(rows), strict=True)
    ]
    return Scored(*(torch.cat(column) for column in zip(*pieces, strict=True)))


def _token_scores(head: torch.nn.Module, hidden: Tensor, targets: Tensor, temperature: float) -> Scored:
    logprobs = torch.log_softmax(head(hidden).float() / temperature, dim=-1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return Scored(logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy)


def _attention(
    _module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *_mask: None,
    packing: Packing, scaling: float | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attends within the packed tokens: query [1, H, L, D], key and value [1, H_kv, L, D] → [1, L, H, D].

    `transformers` calls this in each layer.
    """
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))

    def attend(queries: Tensor, keys: Tensor, positions: Tensor, **mask: Any) -> Tensor:
        rectangles = _rows(query, queries), _rows(key, keys), _rows(value, keys)
        output = F.scaled_dot_product_attention(*rectangles, **mask, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, positions)

    prompts = attend(packing.prompts, packing.prompts, packing.prompt_positions, is_causal=True)
    samples = attend(packing.queries, packing.keys, packing.sample_positions, attn_mask=packing.mask)
    return torch.cat([prompts, samples]).unflatten(1, query.shape[1:]).unsqueeze(0), None


def _rows(states: Tensor, indices: Tensor) -> Tensor:
    """Cuts rows out of packed states: states [L, H, D], indices [R, T] → [R, H, T, D]."""
    chosen = states.flatten(1).index_select(0, indices.flatten())
    return chosen.view(*indices.shape, *states.shape[1:]).transpose(1, 2)


AttentionInterface.register(ATTENTION, _attention)


def prepare_model(model: PreTrainedModel) -> PreTrainedModel:
    """Sets `model` up for `score`. Raises `ConfigError` for an architecture that `score` would compute wrongly."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(model.config.get_text_config().vocab_size, (2, 12), generator=generator)
    prompt, completions = text[0, :4], text[:, 4:]
    with torch.no_grad():
        whole = torch.cat([prompt.expand(2, -1), completions], dim=1)
        logits = model(whole[:, :-1]).logits[:, len(prompt) - 1 :]
        expected = torch.log_softmax(logits.float(), -1).gather(-1, completions.unsqueeze(-1)).flatten()
        model.set_attn_implementation(ATTENTION)
        rows = tuple(
            SampleRow(row.numpy(), row.float().numpy(), np.ones(len(row), np.bool_), 0.0) for row in completions
        )
        (batch,) = micro_batches(Update((PromptSamples(prompt.numpy(), rows),), completions.numel(), 0), 1 << 20)
        found = score(model, batch, 1.0).logprobs
    layers = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.1
    if layers != {"full_attention"} or not torch.allclose(found, expected, atol=tolerance):
        raise ConfigError(
            Problem(
                "model.base",
                f"{type(model).__name__} does more than full attention and plain output embeddings "
                f"(layers: {', '.join(sorted(layers))})",
                "use an architecture without sliding windows, soft caps and logit scales, such as Qwen3 or Llama",
            )
        )
    return model
