"""Refuses an architecture for which `Scorer` would compute wrong results.

What an architecture needs is found on two layers of it with few words and random weights: they take a second, however
large the model is.
"""

import copy

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from learner.batch.micro_batches import micro_batches
from learner.batch.prepare import PromptSamples, SampleRow, Update
from learner.model.attention import ATTENTION, unsupported
from learner.model.attention.rectangles import Rectangles
from learner.model.scorer import Scorer

LAYERS, WORDS, WIDTH, WINDOW = 2, 64, 64, 5
"""Sizes of the copy. Some windows of the tokens that it is tried with begin in the prompt, some after it."""
LOUD = 40.0
"""Factor on the copy's output embeddings: logits become so large that a soft cap on them shows."""
TOLERANCE = 1e-3


def check_architecture(settings: PretrainedConfig) -> None:
    """Raises `ConfigError` for an architecture whose log-probabilities `Scorer` would compute wrongly."""
    text = settings.get_text_config()
    if layers := set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        raise unsupported(f"layers of {', '.join(sorted(layers))}")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _small_copy(text)
        tokens = torch.randint(WORDS, (2, 12))
        if not torch.allclose(_scored(model, tokens), _plain(model, tokens), atol=TOLERANCE):
            raise unsupported(f"more than attention and output embeddings as they are known ({type(model).__name__})")


def _small_copy(settings: PretrainedConfig) -> PreTrainedModel:
    """Returns two layers of the architecture, of each kind one, with few words, a narrow MLP and random weights, in
    float32; one layer if there is no second."""
    small = copy.deepcopy(settings)
    small.num_hidden_layers, small.vocab_size = min(LAYERS, settings.num_hidden_layers), WORDS
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    for name in ("intermediate_size", "moe_intermediate_size"):
        if getattr(small, name, None):
            setattr(small, name, min(getattr(small, name), WIDTH))
    if getattr(small, "layer_types", None):
        small.layer_types = [*sorted(set(small.layer_types)), *small.layer_types][: small.num_hidden_layers]
    if getattr(small, "sliding_window", None):
        small.sliding_window = WINDOW
    model: PreTrainedModel = AutoModelForCausalLM.from_config(small, dtype=torch.float32, attn_implementation="eager")
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight * LOUD)
    model.eval()
    return model


def _plain(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the log-probabilities of tokens 4 … of each row [2, 12], by transformers' own forward pass."""
    shared = tokens[:1, :4].expand(2, -1)
    logits = model(torch.cat([shared, tokens[:, 4:-1]], dim=1)).logits[:, 3:]
    return torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 4:].unsqueeze(-1)).flatten()


def _scored(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the same by `Scorer`: both rows share the first row's prompt."""
    before = model.config._attn_implementation
    rows = tuple(SampleRow(row.numpy(), row.float().numpy(), np.ones(len(row), np.bool_), 0.0) for row in tokens[:, 4:])
    update = Update((PromptSamples(tokens[0, :4].numpy(), rows),), tokens[:, 4:].numel(), 0)
    (batch,) = micro_batches(update, 1 << 20, Rectangles)
    model.set_attn_implementation(ATTENTION)
    found: torch.Tensor = Scorer(model)(batch, 1.0).logprobs
    model.set_attn_implementation(before)
    return found
