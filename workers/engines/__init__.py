"""Engines turn prompts into groups of samples; the rollout loop knows them by this interface only.

- A completion's log-probabilities are those of the distribution its tokens were drawn from:
  softmax(logits / temperature), cut to the top-p nucleus and renormalised. At top_p = 1 a learner gets the same
  numbers from log_softmax(logits / temperature), which is what its ratio must divide by.
- Weights change between calls. A `load` that raises `ConfigError` leaves the old version serving; after any other
  error the engine may hold parts of both.
- A group depends on its prompt, its seed and the weights, not on what shares the call with it.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from echo_queue.config import Config
from echo_queue.records import Finish, Logprobs, Tokens, Version

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


class Prompt(NamedTuple):
    """One group to generate: P token ids, and the seed of its samples."""

    tokens: Tokens
    seed: int


class Completion(NamedTuple):
    """T sampled tokens, a final stop token included, and their behaviour log-probabilities, both [T].

    `finish`: "stop" after a stop token, "length" at max_new_tokens, "abort" when the call was stopped.
    """

    tokens: Tokens
    logprobs: Logprobs
    finish: Finish


class Engine(Protocol):
    name: str

    @property
    def version(self) -> Version:
        """Of the weights loaded."""

    @property
    def sampled(self) -> int:
        """Tokens sampled since the engine was made; may be read from any thread while it generates."""

    def load(self, version: Version, tensors: "Mapping[str, Tensor]") -> None:
        """Takes new weights, named as in the model's state dict (tied names once or equal).

        At most 512 MiB of the device are used beside the model. Raises `ConfigError` naming what is missing, unknown or
        of another shape or type, before anything is changed.
        """

    def weight(self, name: str) -> "Tensor":
        """What is served under this name now: live, not a copy, on whichever device. Raises `KeyError`."""

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, stop: threading.Event
    ) -> list[list[Completion]]:
        """`group_size` completions for each prompt, in order. Returns soon after `stop` is set, with what there is."""


Maker = Callable[[Config, str, Version, Sequence[int]], Engine]
"""Makes an engine as `create` does."""


def create(config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> Engine:
    """The engine of `config.rollout.engine`, serving the weights in `folder` (or hub name) as `version`.

    `stop_tokens`: the tokenizer's, beside those that the model's own generation settings name.
    """
    from workers.engines.transformers import TransformersEngine

    longest = config.model.max_prompt_tokens + config.model.max_new_tokens
    return TransformersEngine(folder, version, config.model.dtype, longest, stop_tokens)
