"""Takes the place of vLLM's sampler: draws as every engine here does, one call for all rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput

from workers.engines import Sampling
from workers.engines.draw import draw


class Sampler:
    """`uniform` gives the random number of the next token of the request of a name."""

    def __init__(self, runner: Any, sampling: Sampling, uniform: Callable[[str], float]) -> None:
        self.logprobs: dict[str, float] = {}
        """Of the tokens of the last step, by the request's name."""
        self._runner = runner
        self._sampling = sampling
        self._uniform = uniform

    def __call__(self, logits: Tensor, sampling_metadata: object) -> SamplerOutput:
        """logits [R, V], rows as in the runner's batch. vLLM drops the tokens of prompts that it read in part."""
        names = self._runner.input_batch.req_ids
        uniform = torch.tensor([self._uniform(name) for name in names], dtype=torch.float64, device=logits.device)
        tokens, logprobs = draw(logits, uniform, self._sampling.temperature, self._sampling.top_p)
        self.logprobs = dict(zip(names, logprobs.tolist(), strict=True))
        return SamplerOutput(sampled_token_ids=tokens.int().unsqueeze(-1), logprobs_tensors=None)
