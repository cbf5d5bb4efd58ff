"""Engines make samples of prompts, many at once; the rollout loop knows them by this interface only.

- A token's log-probability is that of the distribution it was drawn from: softmax(logits / temperature), cut to the
  top-p nucleus and renormalised. At top_p = 1 a learner gets the same numbers from log_softmax(logits / temperature),
  which is what its ratio must divide by.
- Samples join and leave between steps (continuous batching), and so do weights: a sample under way goes on with the
  new ones and keeps its key-value cache, or has all of it read anew (`http`); its spans name the version of each token.
  What is added later reads nothing that was computed with older weights.
- A `load` that raises `ConfigError` leaves the old version serving; after any other error the engine may hold parts of
  both.
- A sample depends on its prompt, its seed, its partial rollout and the weights, not on what shares the batch with it.
- One thread uses an engine; any may read `sampled`, and several may ask at once what it `holds`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from echo_queue.config import Config
from echo_queue.records import NOTHING, PartialSample, Tokens, Version

if TYPE_CHECKING:
    from torch import Tensor

    from echo_queue.weights.manifest import TensorInfo


@dataclass(frozen=True)
class Sampling:
    """How an engine draws. `stop_tokens` end a sample, beside those that the model's own generation settings name."""

    temperature: float = 1.0
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()


class Key(NamedTuple):
    """Names a sample: its task's id, and its number in the group."""

    task: str
    sample: int


class Request(NamedTuple):
    """One sample to generate: prompt [P], then the partial, then up to `limit` tokens with the partial rollout's.

    `seed`, 63 bits, is this sample's own: the token at place t is drawn with the t-th random number of its sequence. A
    server (`http`) begins a sequence of its own at each place where it takes a sample up.
    """

    key: Key
    prompt: Tokens
    seed: int
    limit: int
    partial_sample: PartialSample = NOTHING


class Engine(Protocol):
    name: str

    @property
    def version(self) -> Version:
        """Of the weights loaded."""

    @property
    def sampled(self) -> int:
        """Tokens sampled since the engine was made."""

    @property
    def running(self) -> int:
        """Samples in it, neither ended nor aborted."""

    def add(self, requests: Sequence[Request]) -> None:
        """They join at the next step. Requests of one call that share a prompt, and have no partial, read it once.

        Raises `ValueError` for a key that is in use, an empty prompt, or a partial rollout that is at its limit.
        """

    def step(self) -> Mapping[Key, PartialSample]:
        """At least one more token for each sample; where a server makes them, those that have come.

        Those that ended leave: "stop" after a stop token (it is the last one of the partial), "length" at the limit.
        """

    def partials(self, tasks: Collection[str] | None = None) -> Mapping[Key, PartialSample]:
        """How far the samples under way are; of these tasks, or all."""

    def abort(self, tasks: Collection[str]) -> None:
        """The samples of these tasks leave at once. Unknown ones are ignored."""

    def load(self, version: Version, tensors: "Mapping[str, Tensor]") -> None:
        """Takes new weights, named as in the model's state dict (tied names once or equal).

        At most 512 MiB of the device are used beside the model. Raises `ConfigError` naming what is missing, unknown or
        of another shape or type, before anything is changed.
        """

    def weight(self, name: str) -> "Tensor":
        """What is served under this name now, not a copy, on whichever device; of an engine that runs elsewhere, what
        it was given. Raises `KeyError`."""

    def holds(self, info: "TensorInfo") -> bool:
        """Whether what is served under this name now, read from where it is served, has the digest that is named."""

    def close(self) -> None:
        """Gives back the device, and ends what it started."""


def check(requests: Sequence[Request], partial_payloads: Collection[Key]) -> None:
    """Raises `ValueError` as `Engine.add` does."""
    used = set(partial_payloads)
    for request in requests:
        if request.key in used:
            raise ValueError(f"{request.key} is under way already")
        if not len(request.prompt):
            raise ValueError(f"{request.key} has an empty prompt")
        if len(request.partial_sample.tokens) >= request.limit:
            raise ValueError(f"the partial rollout of {request.key} is at its limit of {request.limit} tokens")
        used.add(request.key)


Maker = Callable[[Config, str, Version, Sequence[int]], Engine]
"""Makes an engine as `create` does."""


def create(config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> Engine:
    """The engine of `config.rollout.engine`, serving the weights in `folder` (or hub name) as `version`.

    `stop_tokens`: the tokenizer's.
    """
    rollout = config.rollout
    sampling = Sampling(rollout.temperature, rollout.top_p, tuple(stop_tokens))
    longest = config.model.max_prompt_tokens + config.model.max_new_tokens
    if rollout.engine == "http":
        return _http(config, folder, version, longest, sampling)
    if rollout.engine == "vllm":
        from workers.engines.vllm.engine import VllmEngine
        from workers.engines.vllm.opening import Room

        room = Room(rollout.concurrent_groups * rollout.group_size, longest, config.model.dtype)
        return VllmEngine(folder, version, room, sampling, rollout.metrics_port)
    from workers.engines.transformers import TransformersEngine

    return TransformersEngine(folder, version, config.model.dtype, longest, sampling)


def _http(config: Config, folder: str, version: Version, longest: int, sampling: Sampling) -> Engine:
    from echo_queue.connections.secrets import engine_key
    from workers.engines.http.engine import HttpEngine
    from workers.engines.http.weights import Place

    rollout, http = config.rollout, config.rollout.http
    assert http.weights_dir is not None  # a contradiction otherwise
    samples = rollout.concurrent_groups * rollout.group_size
    place = Place(http.url, engine_key(), http.weights_dir, http.deadline_s, http.checksums, samples)
    return HttpEngine(folder, version, place, dtype=config.model.dtype, longest=longest, sampling=sampling)
