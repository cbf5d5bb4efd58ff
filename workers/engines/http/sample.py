"""A sample under way: what counts, and what has come since and is not known yet to be of the weights it should be."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from blake3 import blake3

from echo_queue.records import Finish, PartialSample, Span
from workers.engines import Request, Sampling


class Sample:
    """`stream`: what it is called where it is generated now; empty while it is not. `finish`: once it has ended."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.stream = ""
        self.finish: Finish | None = None
        self._tokens: list[int] = request.partial_sample.tokens.tolist()
        self._logprobs: list[float] = request.partial_sample.logprobs.tolist()
        self._spans: list[Span] = list(request.partial_sample.spans)
        self._counts = len(self._tokens)

    @property
    def pending(self) -> bool:
        """Something has come that does not count yet."""
        return len(self._tokens) > self._counts

    def append(self, tokens: list[int], logprobs: list[float]) -> None:
        self._tokens += tokens
        self._logprobs += logprobs

    def confirm(self, version: int) -> None:
        """What has come was drawn by this version."""
        if not self.pending:
            return
        if not self._spans or self._spans[-1].version != version:
            self._spans.append(Span(self._counts, version))
        self._counts = len(self._tokens)

    def drop(self) -> None:
        """Nobody knows what drew what has come: it is forgotten."""
        del self._tokens[self._counts :], self._logprobs[self._counts :]

    def partial_sample(self) -> PartialSample:
        """What counts."""
        tokens = np.array(self._tokens[: self._counts], np.int32)
        logprobs = np.array(self._logprobs[: self._counts], np.float32)
        return PartialSample(tokens, logprobs, tuple(self._spans), self.request.partial_sample.observed, self.finish)

    def wanted(self, sampling: Sampling, stop_tokens: list[int], label: str) -> Mapping[str, Any]:
        """The rest of it, as the server is asked for it."""
        return {
            "token_ids": [*self.request.prompt.tolist(), *self._tokens[: self._counts]],
            "cache_salt": label,
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "seed": seed_at(self.request.seed, self._counts),
                "max_tokens": self.request.limit - self._counts,
                "stop_token_ids": stop_tokens,
                "ignore_eos": True,  # those that count are among the stop tokens
                "logprobs": 0,  # of the token drawn
                "detokenize": False,
            },
        }


def seed_at(seed: int, place: int) -> int:
    """63 bits: of the server's own sequence of random numbers for a sample that is taken up at `place`."""
    return int.from_bytes(blake3(f"{seed} {place}".encode()).digest(8)) >> 1
