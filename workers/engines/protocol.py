"""The protocol of engines, which generate samples of prompts, many at once; the rollout loop uses nothing else of them.

- A token's log-probability is that of the distribution it was drawn from (`Sampling`). At top_p = 1 a learner computes
  the same numbers as log_softmax(logits / temperature), by which its ratio must divide.
- Samples join and leave between steps (continuous batching). Weights change between steps as well: a running sample
  goes on with the new weights and keeps its key-value cache, or has all of it computed again (`http`); its spans name
  the version of each token. A sample added later reads nothing that was computed with older weights.
- A `load` that raises `ConfigError` leaves the old version serving; after any other error the engine may hold parts of
  both versions.
- A sample depends on its prompt, its seed, its sampling, its partial rollout and the weights, not on the other samples
  in its batch, which may be sampled otherwise.
- One thread uses an engine, except that any thread may read `sampled`, and several may call `holds` at once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from echo_queue.records import NOTHING, PartialSample, Tokens, Version

if TYPE_CHECKING:
    from torch import Tensor

    from echo_queue.weights.manifest import TensorInfo

PROBE_THREADS = 4
"""The threads that read and digest one large tensor when a swap is probed, while generation pauses."""


class Sampling(NamedTuple):
    """The distribution from which tokens are drawn: softmax(logits / temperature), cut to the top-p nucleus and
    renormalised.

    Temperature 0 is greedy: it takes the most likely token, whose log-probability is that in softmax(logits).
    """

    temperature: float = 1.0
    top_p: float = 1.0


class SampleKey(NamedTuple):
    """Identifies a sample by its task's id and its number in the group."""

    task: str
    sample: int


class SampleRequest(NamedTuple):
    """A sample to generate: its prompt [P] and the partial rollout to continue, if any.

    `limit`: the most tokens of the sample, those of the partial rollout included. `seed`, 63 bits, is this sample's
    own: the token at index t is drawn with the t-th random number of its sequence. A server (`http`) begins a sequence
    of its own at each index from which it continues a sample.
    """

    key: SampleKey
    prompt: Tokens
    seed: int
    limit: int
    partial_sample: PartialSample = NOTHING
    sampling: Sampling = Sampling()


class Engine(Protocol):
    """Generates samples, and serves one version of the weights at a time."""

    name: str

    @property
    def version(self) -> Version:
        """The version of the weights loaded."""

    @property
    def sampled(self) -> int:
        """The number of tokens sampled since the engine was made. Any thread may read it."""

    @property
    def running(self) -> int:
        """The number of samples in the engine that have neither ended nor been aborted."""

    def add(self, requests: Sequence[SampleRequest]) -> None:
        """Adds samples, which join at the next step. The prompt that several requests of one call share is read once,
        unless they have partial rollouts.

        Raises `ValueError` for a key that is in use, an empty prompt, or a partial rollout that is at its limit.
        """

    def step(self) -> Mapping[SampleKey, PartialSample]:
        """Draws at least one more token for each sample (`http`: takes the tokens that have arrived from the server).

        Returns the samples that ended, which leave the engine. Their finish is "stop" after a stop token, which is the
        last token of the sample, and "length" at the limit.
        """

    def partials(self, tasks: Collection[str] | None = None) -> Mapping[SampleKey, PartialSample]:
        """Returns the partial rollouts of the running samples, of these tasks or of all."""

    def abort(self, tasks: Collection[str]) -> None:
        """Removes the samples of these tasks at once. Unknown tasks are ignored."""

    def load(self, version: Version, tensors: "Mapping[str, Tensor]") -> None:
        """Loads new weights, named as in the model's state dict (tied names once, or with equal tensors).

        It uses at most 512 MiB of the device beside the model. It raises `ConfigError`, before anything is changed,
        naming each tensor that is missing, unknown or of another shape or type.
        """

    def weight(self, name: str) -> "Tensor":
        """Returns the tensor that is served under this name, not a copy, on the engine's device. Raises `KeyError`.

        An engine whose model runs in another process returns the tensor that it was given last.
        """

    def holds(self, info: "TensorInfo") -> bool:
        """Returns whether the tensor named, read from where it is served, has the digest in `info`. Any thread may call
        it."""

    def close(self) -> None:
        """Releases the device, and ends the threads and processes that the engine started."""


def check(requests: Sequence[SampleRequest], in_use: Collection[SampleKey]) -> None:
    """Raises `ValueError` as `Engine.add` does. `in_use`: the keys of the running samples."""
    used = set(in_use)
    for request in requests:
        if request.key in used:
            raise ValueError(f"{request.key} is in use already")
        if not len(request.prompt):
            raise ValueError(f"{request.key} has an empty prompt")
        if len(request.partial_sample.tokens) >= request.limit:
            raise ValueError(f"the partial rollout of {request.key} is at its limit of {request.limit} tokens")
        used.add(request.key)
