"""Replaces vLLM's sampler: draws as every engine here does, one call for all rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput

from workers.engines.draw import draw, rows_by_sampling, to_lists
from workers.engines.protocol import Sampling

Take = Callable[[str, int, float], None]


class Sampler:
    """`sampling` returns the distribution of a request, by its id, and `uniform` the random number for its next token;
    `take` is called with the id, the token and its log-probability."""

    def __init__(
        self, runner: Any, sampling: Callable[[str], Sampling], uniform: Callable[[str], float], take: Take
    ) -> None:
        self._runner = runner
        self._sampling = sampling
        self._uniform = uniform
        self._take = take

    def __call__(self, logits: Tensor, sampling_metadata: object) -> SamplerOutput:
        """Draws from logits [R, V], one row per request of the runner's batch. A prompt read in part gets no token."""
        ids = self._runner.input_batch.req_ids
        numbers = torch.tensor([self._uniform(one) for one in ids], dtype=torch.float64, pin_memory=logits.is_cuda)
        uniform = numbers.to(logits.device, non_blocking=True)
        tokens, logprobs = draw(logits, uniform, rows_by_sampling(map(self._sampling, ids)))
        in_part = self._runner.discard_request_mask.np[: len(ids)].tolist()
        for one, token, logprob, discard in zip(ids, *to_lists(tokens, logprobs), in_part, strict=True):
            if not discard:
                self._take(one, token, logprob)
        return SamplerOutput(sampled_token_ids=tokens.int().unsqueeze(-1), logprobs_tensors=None)
