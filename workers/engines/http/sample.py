"""A running sample: the tokens that count, and those that arrived since and whose weights are not confirmed yet."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from blake3 import blake3

from echo_queue.records import Finish, PartialSample, Span
from workers.engines.protocol import SampleRequest, Sampling


class HttpSample:
    """A running sample. `stream`: the name of its stream, empty while it has none. `finish`: set once it has ended."""

    def __init__(self, request: SampleRequest) -> None:
        self.request = request
        self.stream = ""
        self.finish: Finish | None = None
        self._tokens: list[int] = request.partial_sample.tokens.tolist()
        self._logprobs: list[float] = request.partial_sample.logprobs.tolist()
        self._spans: list[Span] = list(request.partial_sample.spans)
        self._confirmed = len(self._tokens)

    @property
    def pending(self) -> bool:
        """True while there are tokens that do not count yet."""
        return len(self._tokens) > self._confirmed

    def append(self, tokens: list[int], logprobs: list[float]) -> None:
        """Appends tokens that arrived; they do not count until `confirm`."""
        self._tokens += tokens
        self._logprobs += logprobs

    def confirm(self, version: int) -> None:
        """Makes the pending tokens count as drawn by `version`."""
        if not self.pending:
            return
        if not self._spans or self._spans[-1].version != version:
            self._spans.append(Span(self._confirmed, version))
        self._confirmed = len(self._tokens)

    def drop(self) -> None:
        """Drops the pending tokens, because the weights that drew them are unknown."""
        del self._tokens[self._confirmed :], self._logprobs[self._confirmed :]

    def partial_sample(self) -> PartialSample:
        """Returns the tokens that count, as a partial rollout."""
        tokens = np.array(self._tokens[: self._confirmed], np.int32)
        logprobs = np.array(self._logprobs[: self._confirmed], np.float32)
        return PartialSample(tokens, logprobs, tuple(self._spans), self.request.partial_sample.observed, self.finish)

    def server_request(self, sampling: Sampling, stop_tokens: list[int], label: str) -> Mapping[str, Any]:
        """Returns the server's request for the rest of the sample."""
        return {
            "token_ids": [*self.request.prompt.tolist(), *self._tokens[: self._confirmed]],
            "cache_salt": label,
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": seed_at(self.request.seed, self._confirmed),
                "max_tokens": self.request.limit - self._confirmed,
                "stop_token_ids": stop_tokens,
                "ignore_eos": True,  # the stop tokens that matter are listed above
                "logprobs": 0,  # only that of the token drawn
                "detokenize": False,
            },
        }


def seed_at(seed: int, index: int) -> int:
    """Returns the 63-bit seed of the server's random numbers for a sample that continues from token `index`."""
    return int.from_bytes(blake3(f"{seed} {index}".encode()).digest(8)) >> 1
