"""A running sample: the tokens that count, and those that arrived since and whose weights are not confirmed yet."""

from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from workers.engines.protocol import SampleRequest
from workers.engines.running_sample import RunningSample


class HttpSample(RunningSample):
    """A running sample. `stream`: the name of its stream, empty while it has none."""

    def __init__(self, request: SampleRequest) -> None:
        super().__init__(request)
        self.stream = ""
        self._pending: list[tuple[int, float]] = []
        """The tokens that do not count yet, with their log-probabilities."""

    @property
    def pending(self) -> bool:
        """True while there are tokens that do not count yet."""
        return bool(self._pending)

    def append(self, tokens: list[int], logprobs: list[float]) -> None:
        """Appends tokens that arrived; they do not count until `confirm`."""
        self._pending += zip(tokens, logprobs, strict=True)

    def confirm(self, version: int) -> None:
        """Makes the pending tokens count as drawn by `version`."""
        self.extend([token for token, _ in self._pending], [logprob for _, logprob in self._pending], version)
        self._pending.clear()

    def drop(self) -> None:
        """Drops the pending tokens, because the weights that drew them are unknown."""
        self._pending.clear()

    def server_request(self, stop_tokens: list[int], label: str) -> Mapping[str, Any]:
        """Returns the server's request for the rest of the sample."""
        return {
            "token_ids": [*self.request.prompt.tolist(), *self.tokens],
            "cache_salt": label,
            "sampling_params": {
                "temperature": self.request.sampling.temperature,
                "top_p": self.request.sampling.top_p,
                "seed": seed_at(self.request.seed, len(self.tokens)),
                "max_tokens": self.request.limit - len(self.tokens),
                "stop_token_ids": stop_tokens,
                "ignore_eos": True,  # the stop tokens that matter are listed above
                "logprobs": 0,  # only that of the token drawn
                "detokenize": False,
            },
        }


def seed_at(seed: int, index: int) -> int:
    """Returns the 63-bit seed of the server's random numbers for a sample that continues from token `index`."""
    return int.from_bytes(blake3(f"{seed} {index}".encode()).digest(8)) >> 1
