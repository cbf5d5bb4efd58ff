"""Log-probabilities of completion tokens, with each prompt computed once for all of its samples.

- The result equals a plain forward pass over prompt + completion, gradients included, as the tests check.
- Linear layers see packed tokens without padding; attention is the micro-batch's own (`learner.model.attention`).
- The head is computed only where the next token is one that the model drew (`learner.model.head`).
"""

from collections.abc import Callable

import torch
from torch.nn import ModuleList
from transformers import PreTrainedModel

from learner.batch.micro_batches import MicroBatch
from learner.model.head import Head, Scored, token_scores

Score = Callable[[MicroBatch, float], Scored]
"""Scores a micro-batch at a temperature, as `Scorer` does."""
LOGITS_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Logits in memory at once, by the kind of device: 64 MiB and 1 GiB in float32."""


class Scorer(torch.nn.Module):
    """Scores micro-batches. `model`: from `learner.model.loading`.

    It is a module, so that a sharded model gathers the embeddings and the head around this forward pass, too.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @property
    def layers(self) -> ModuleList:
        """The model's layers, in order."""
        layers = self.model.base_model.layers
        assert isinstance(layers, ModuleList)
        return layers

    def forward(self, batch: MicroBatch, temperature: float) -> Scored:
        """Returns log softmax(logits / temperature) at each token that the model drew, and the entropy there.

        At top_p = 1 this is the distribution that engines sample from. Below 1, an engine's log-probabilities are those
        of the nucleus, and the ratio to them is the importance weight of the uncut policy; on-policy it is in
        [top_p, 1].
        """
        output = self.model.base_model(
            batch.tokens.unsqueeze(0), position_ids=batch.positions.unsqueeze(0), packing=batch.packing, use_cache=False
        )
        hidden = output.last_hidden_state[0].index_select(0, batch.outputs)
        cap = getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)
        head = Head(self.model.get_output_embeddings().weight, cap)
        return token_scores(hidden, head, batch.targets, temperature, LOGITS_AT_ONCE[hidden.device.type])
