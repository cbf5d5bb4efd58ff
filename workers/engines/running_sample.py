"""A sample that an engine is generating: the tokens drawn so far, with their log-probabilities and versions."""

import numpy as np

from echo_queue.records import Finish, PartialSample, Span
from workers.engines.protocol import SampleRequest


class RunningSample:
    """A sample that begins with the request's partial rollout. `finish`: set once it has ended."""

    def __init__(self, request: SampleRequest) -> None:
        self.request = request
        self.finish: Finish | None = None
        self.tokens: list[int] = request.partial_sample.tokens.tolist()
        self._logprobs: list[float] = request.partial_sample.logprobs.tolist()
        self._spans = list(request.partial_sample.spans)

    def extend(self, tokens: list[int], logprobs: list[float], version: int) -> None:
        """Appends tokens that `version` drew."""
        if tokens and (not self._spans or self._spans[-1].version != version):
            self._spans.append(Span(len(self.tokens), version))
        self.tokens += tokens
        self._logprobs += logprobs

    def partial_sample(self) -> PartialSample:
        """Returns the tokens so far, and the finish."""
        tokens, logprobs = np.array(self.tokens, np.int32), np.array(self._logprobs, np.float32)
        return PartialSample(tokens, logprobs, tuple(self._spans), self.request.partial_sample.observed, self.finish)
