"""Tries a server out before its first sample, to see whether it fits the run.

The settings that the server reports are checked first. Then it is given weights that no run would serve, each of them
negated, and its log-probabilities of a few tokens must equal those of a plain forward pass. This shows that the server
loads all of the weights it is given, and reports the log-probabilities of the distribution that it draws from.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from echo_queue.errors import ConfigError, Problem
from echo_queue.records import Tokens
from workers.engines.draw import nucleus_
from workers.engines.http.sample import HttpSample
from workers.engines.http.server import START, WHERE, ServerSettings
from workers.engines.http.streams import Streams
from workers.engines.model_folder import too_short
from workers.engines.protocol import SampleKey, SampleRequest, Sampling

PROMPT, TOKENS = 6, 12
CLOSE = {"float32": 1e-3, "bfloat16": 0.25}
"""The largest difference between the log-probabilities of the server and of a plain forward pass, by `model.dtype`, at
temperatures of at least 1; a lower temperature makes differences larger."""


def unfit(settings: ServerSettings, model: PreTrainedConfig, dtype: str, longest: int) -> Iterator[Problem]:
    """Yields the settings of the server that do not fit the run. `longest`: the most tokens of a sample."""
    yield from too_short(model, longest)
    if settings.logprobs_mode != "processed_logprobs":
        what = f"the server reports {settings.logprobs_mode}, not log-probabilities of the distribution it draws from"
        yield Problem(WHERE, what, "start it with --logprobs-mode processed_logprobs")
    if settings.max_model_len < longest:
        what = f"the server takes {settings.max_model_len} tokens, prompt and completion together may have {longest}"
        yield Problem(WHERE, what, f"start it with --max-model-len {longest} or more")
    if settings.dtype != dtype:
        yield Problem(
            WHERE, f"the server computes in {settings.dtype}, model.dtype is {dtype}", "give both the same type"
        )


@contextmanager
def negated(model: PreTrainedModel) -> Iterator[None]:
    """Negates each weight; restores it bit for bit at the end."""
    _negate(model)
    try:
        yield
    finally:
        _negate(model)


def try_out(streams: Streams, model: PreTrainedModel, dtype: str, sampling: Sampling, label: str) -> None:
    """Checks that a server that was given the weights of `model` generates with them. Raises `ConfigError` if not."""
    vocabulary = model.config.get_text_config().vocab_size
    prompt = np.linspace(0, vocabulary - 1, PROMPT).astype(np.int32)
    request = SampleRequest(SampleKey("trial", 0), prompt, 0, TOKENS, sampling=sampling)
    tokens: list[int] = []
    logprobs: list[float] = []
    for chunk in streams.whole("trial", HttpSample(request).server_request([], label)):
        tokens += chunk.tokens
        logprobs += chunk.logprobs
    expected = _logprobs(model, prompt, np.array(tokens, np.int32), sampling)
    if len(logprobs) != TOKENS:
        raise ConfigError(Problem(WHERE, "the server reports no log-probabilities", f"start it with {START}"))
    difference = float((expected - torch.tensor(logprobs)).abs().max())
    if not difference <= CLOSE[dtype] / min(1.0, sampling.temperature):
        what = f"the server's tokens are not of the weights it was given: log-probabilities are {difference:.2g} off"
        fix = (
            "start it with the model that model.base names, unquantised, in the same dtype; on CPUs with "
            "--worker-extension-cls workers.engines.http.plain_weights.PlainWeights (docs/engines.md)"
        )
        raise ConfigError(Problem(WHERE, what, fix))


@torch.no_grad()
def _negate(model: PreTrainedModel) -> None:
    distinct = {id(one): one for one in model.state_dict(keep_vars=True).values() if one.is_floating_point()}
    for one in distinct.values():
        one.neg_()


@torch.inference_mode()
def _logprobs(model: PreTrainedModel, prompt: Tokens, tokens: Tokens, sampling: Sampling) -> Tensor:
    """Returns the log-probability of each token in the distribution from which it should have been drawn."""
    inputs = torch.from_numpy(np.concatenate([prompt, tokens])).long()
    logits: Tensor = model(inputs.unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.float() / sampling.temperature, dim=-1)
    ordered = logprobs.exp().sort(dim=-1, descending=True).values
    mass = nucleus_(ordered, sampling.top_p).sum(-1)
    return logprobs.gather(-1, inputs[len(prompt) :, None]).squeeze(-1) - mass.log()
