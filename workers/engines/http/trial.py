"""Whether a server fits, tried out before the first sample.

The settings that it reports are looked at first. Then it is given weights that nobody would serve, each one negated,
and what it says of a few tokens must be what a plain forward pass over them says: so it takes what it is given, all of
it, and its log-probabilities are those of the distribution that it draws from.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from echo_queue.errors import ConfigError, Problem
from echo_queue.records import Tokens
from workers.engines import Key, Request, Sampling
from workers.engines.checkpoint import too_short
from workers.engines.draw import nucleus_
from workers.engines.http.sample import Sample
from workers.engines.http.server import START, WHERE, Settings
from workers.engines.http.streams import Streams

PROMPT, TOKENS = 6, 12
CLOSE = {"float32": 1e-3, "bfloat16": 0.25}
"""Log-probabilities of the server and of a plain forward pass differ at most so much, by `model.dtype`, at temperatures
from 1 on; a lower one makes differences larger."""


def unfit(settings: Settings, model: PreTrainedConfig, dtype: str, longest: int) -> Iterator[Problem]:
    yield from too_short(model, longest)
    if settings.logprobs_mode != "processed_logprobs":
        what = f"the server gives {settings.logprobs_mode}, not the log-probabilities of what it draws from"
        yield Problem(WHERE, what, "start it with --logprobs-mode processed_logprobs")
    if settings.max_model_len < longest:
        what = f"the server ends at {settings.max_model_len} tokens, prompt and completion together may have {longest}"
        yield Problem(WHERE, what, f"start it with --max-model-len {longest} or more")
    if settings.dtype != dtype:
        yield Problem(WHERE, f"the server computes in {settings.dtype}, model.dtype is {dtype}", "give both the same")


@contextmanager
def negated(model: PreTrainedModel) -> Iterator[None]:
    """Each weight with the other sign; afterwards bit for bit as it was."""
    _negate(model)
    try:
        yield
    finally:
        _negate(model)


def try_out(streams: Streams, model: PreTrainedModel, dtype: str, sampling: Sampling, label: str) -> None:
    """The server has the weights of `model`. Raises `ConfigError` if what it generates is not of them."""
    vocabulary = model.config.get_text_config().vocab_size
    prompt = np.linspace(0, vocabulary - 1, PROMPT).astype(np.int32)
    request = Request(Key("trial", 0), prompt, 0, TOKENS)
    tokens: list[int] = []
    logprobs: list[float] = []
    for chunk in streams.whole("trial", Sample(request).wanted(sampling, [], label)):
        tokens += chunk.tokens
        logprobs += chunk.logprobs
    expected = _logprobs(model, prompt, np.array(tokens, np.int32), sampling)
    if len(logprobs) != TOKENS:
        raise ConfigError(Problem(WHERE, "the server gives no log-probabilities", f"start it with {START}"))
    difference = float((expected - torch.tensor(logprobs)).abs().max())
    if not difference <= CLOSE[dtype] / min(1.0, sampling.temperature):
        what = f"what the server draws is not of the weights it was given: log-probabilities are {difference:.2g} off"
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
    """Of each token, after all that is before it, in the distribution that it should have been drawn from."""
    inputs = torch.from_numpy(np.concatenate([prompt, tokens])).long()
    logits: Tensor = model(inputs.unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.float() / sampling.temperature, dim=-1)
    ordered = logprobs.exp().sort(dim=-1, descending=True).values
    mass = nucleus_(ordered, sampling.top_p).sum(-1)
    return logprobs.gather(-1, inputs[len(prompt) :, None]).squeeze(-1) - mass.log()
