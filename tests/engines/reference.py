"""The reference: a plain forward pass of transformers over a sample."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from echo_queue.records import PartialSample, Tokens

CLOSE = 1e-4
"""The largest difference between log-probabilities of engines and of the plain forward pass, in float32."""


@torch.inference_mode()
def logits(model: PreTrainedModel, tokens: Tokens) -> torch.Tensor:
    """Computes the logits after each token [T, V] of one unpadded sequence."""
    output: torch.Tensor = model(torch.from_numpy(tokens).long().unsqueeze(0)).logits[0]
    return output


def greedy(model: PreTrainedModel, prompt: Tokens, count: int) -> list[int]:
    """Generates greedily, with a forward pass over the whole sequence for each token."""
    tokens = prompt
    for _ in range(count):
        tokens = np.append(tokens, np.int32(logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :].tolist()


@torch.inference_mode()
def logprobs(
    models: Mapping[int, PreTrainedModel],
    prompt: Tokens,
    partial_sample: PartialSample,
    begun: int = 0,
    temperature: float = 1.0,
) -> torch.Tensor:
    """log_softmax(logits / temperature) [T - begun, V] at the tokens from place `begun` on.

    The model of the first of them reads all that comes before. Each later one goes on with the keys and values
    that the others have left.
    """
    inputs = torch.from_numpy(np.concatenate([prompt, partial_sample.tokens])[:-1]).long().unsqueeze(0)
    cache, said = DynamicCache(), []
    ends = [*(span.start for span in partial_sample.spans[1:]), len(partial_sample.tokens)]
    for span, end in zip(partial_sample.spans, ends, strict=True):
        if end <= begun:
            continue
        read = inputs[:, cache.get_seq_length() : len(prompt) - 1 + end]
        output = models[span.version](read, past_key_values=cache, use_cache=True)
        said.append(output.logits[0, -(end - max(span.start, begun)) :])
    return torch.log_softmax(torch.cat(said) / temperature, dim=-1)


def _parts(partial_sample: PartialSample) -> Iterator[PartialSample]:
    """Yields the sequence up to the end of each span."""
    for number, end in enumerate([*(span.start for span in partial_sample.spans[1:]), len(partial_sample.tokens)], 1):
        yield PartialSample(partial_sample.tokens[:end], partial_sample.logprobs[:end], partial_sample.spans[:number])


def assert_drawn_by(
    models: Mapping[int, PreTrainedModel],
    prompt: Tokens,
    partial_sample: PartialSample,
    begun: int = 0,
    *,
    temperature: float = 1.0,
    anew: bool = False,
) -> None:
    """The log-probabilities from place `begun` on are those of `models`, each under its own version.

    `anew`: each version has read for itself what comes before its tokens.
    """
    if anew:
        for part in _parts(partial_sample):
            assert_drawn_by(models, prompt, part, part.spans[-1].start, temperature=temperature)
        return
    tokens = torch.from_numpy(partial_sample.tokens[begun:]).long().unsqueeze(1)
    expected = logprobs(models, prompt, partial_sample, begun, temperature).gather(1, tokens).squeeze(1)
    np.testing.assert_allclose(partial_sample.logprobs[begun:], expected.numpy(), atol=CLOSE, rtol=0)
