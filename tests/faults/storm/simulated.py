"""Simulations of what takes time: an engine that draws tokens instead of computing them, and rewards by parity.

A few groups are spoiled on purpose: a scorer that raises now and then or always, a token that the model does not have.
The log-probabilities of the engine show which tensors it was served with (`stamps`).
"""

import random
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_queue.config import Config
from echo_queue.records import Finish, Logprobs, PartialSample, Span, Tokens, Version
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import matches
from tests.faults.history import stamps
from workers.engines import SampleKey, SampleRequest
from workers.environments import Reply, ScoringRequest, Turn
from workers.environments.calls import Call, ScoringError
from workers.environments.protocol import Rewards, Spent

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY = 40
SHORT, LONG = 4, 128
"""Most tokens of a sample; a long one's group does not fit into its replay entry, and takes a step for each token."""
ONE_IN_LONG, ONE_IN_SPOILED, ONE_IN_SPOILED_LONG, ONE_IN_SLOW = 40, 4_000, 10, 600
"""Samples that are long; short samples or scores, and long samples, that are spoiled; steps that take long."""
STEP_S, SLOW_S = 0.002, 1.0
"""A step in which a long sample grows, so that its worker may die on the way; one that takes long, at most."""


class SimulatedEngine:
    """An engine whose samples are drawn at random: everything of an engine but the model."""

    name = "simulated"

    def __init__(self, config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> None:
        from safetensors.torch import load_file

        self.version = version
        self.sampled = 0
        self._tensors = stamps.on(version, load_file(f"{folder}/model.safetensors"))
        self._running: dict[SampleKey, SimulatedSample] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    def load(self, version: Version, tensors: "Mapping[str, Tensor]") -> None:
        for name, tensor in self._tensors.items():
            tensor.copy_(tensors[name])
        self.version = version

    def weight(self, name: str) -> "Tensor":
        return self._tensors[name]

    def holds(self, info: TensorInfo) -> bool:
        return matches(self.weight(info.name), info)

    def add(self, requests: Sequence[SampleRequest]) -> None:
        for request in requests:
            assert request.key not in self._running and len(request.partial_sample.tokens) < request.limit
            self._running[request.key] = SimulatedSample.of(request)

    def step(self) -> dict[SampleKey, PartialSample]:
        slow_s = random.uniform(0, SLOW_S) if random.randrange(ONE_IN_SLOW) == 0 else 0.0
        time.sleep(slow_s + STEP_S * any(sample.long for sample in self._running.values()))
        version = stamps.of(self._tensors)
        for sample in self._running.values():
            self.sampled += sample.grow(version)
        ended = {key: sample.partial_sample("stop") for key, sample in self._running.items() if sample.ended}
        for key in ended:
            del self._running[key]
        return ended

    def partials(self, tasks: Collection[str] | None = None) -> dict[SampleKey, PartialSample]:
        return {
            key: one.partial_sample(None) for key, one in self._running.items() if tasks is None or key.task in tasks
        }

    def abort(self, tasks: Collection[str]) -> None:
        for key in [key for key in self._running if key.task in tasks]:
            del self._running[key]

    def close(self) -> None:
        self._running.clear()


@dataclass
class SimulatedSample:
    """A sample under way: all its tokens are known, `place` of them are drawn. A long one grows by one in a step."""

    begun: PartialSample
    tokens: Tokens
    """The tokens after the end of `begun`."""
    logprobs: Logprobs
    spans: list[Span]
    place: int = 0

    @classmethod
    def of(cls, request: SampleRequest) -> "SimulatedSample":
        draw = np.random.default_rng(request.seed)
        long = draw.integers(ONE_IN_LONG) == 0
        length = LONG if long else int(draw.integers(1, SHORT + 1))
        beyond = VOCABULARY if draw.integers(ONE_IN_SPOILED_LONG if long else ONE_IN_SPOILED) == 0 else 0
        length = min(length, request.limit - len(request.partial_sample.tokens))
        tokens = (draw.integers(0, VOCABULARY, length) + beyond).astype(np.int32)
        return cls(request.partial_sample, tokens, np.zeros(length, np.float32), list(request.partial_sample.spans))

    @property
    def long(self) -> bool:
        return len(self.tokens) > SHORT

    @property
    def ended(self) -> bool:
        return self.place == len(self.tokens)

    def grow(self, version: Version) -> int:
        """Grows the sample; returns by how many tokens."""
        count = 1 if self.long else len(self.tokens)
        if not self.spans or self.spans[-1].version != version.number:
            self.spans.append(Span(len(self.begun.tokens) + self.place, version.number))
        self.logprobs[self.place : self.place + count] = stamps.logprobs(count, version)
        self.place += count
        return count

    def partial_sample(self, finish: Finish | None) -> PartialSample:
        return PartialSample(
            tokens=np.concatenate([self.begun.tokens, self.tokens[: self.place]]),
            logprobs=np.concatenate([self.begun.logprobs, self.logprobs[: self.place]]),
            spans=tuple(self.spans),
            observed=self.begun.observed,
            finish=finish,
        )


class ParityScorer:
    """A scorer in this process, with the interface of `Scorer`; an environment that answers, if `interactive`."""

    waiting = under_way = 0
    spent = Spent()

    def __init__(self, interactive: bool) -> None:
        self.interactive = interactive
        self._woken = threading.Event()
        self._ended: list[Call] = []

    def wait_ready(self) -> None:
        pass

    def ask(self, call: Call) -> None:
        try:
            call.answer = self._answer(call.question)
        except ScoringError as error:
            call.answer = error
        self._ended.append(call)

    def wait(self, timeout_s: float) -> list[Call]:
        if not self._ended:
            self._woken.wait(timeout_s)
            self._woken.clear()
        ended, self._ended = self._ended, []
        return ended

    def wake(self) -> None:
        self._woken.set()

    def forget_waiting(self) -> None:
        pass

    def _answer(self, question: ScoringRequest | Turn) -> Rewards | Reply:
        self._may_fail(question.columns)
        if isinstance(question, ScoringRequest):
            return Rewards([float(sum(tokens) % 2) for tokens in question.completion_ids])
        if len(question.completions) < question.columns["turns"] and not question.last:
            return Reply(observation=f"w{len(question.completions)}", reward=None)
        return Reply(observation=None, reward=float(sum(map(len, question.completions)) % 2))

    def _may_fail(self, columns: "Mapping[str, Any]") -> None:
        if columns.get("poison") or random.randrange(ONE_IN_SPOILED) == 0:
            raise ScoringError("Traceback (made up):\nno reward for this one")

    def close(self) -> None:
        pass


def make_base(folder: Path) -> None:
    """A model of one layer and its tokenizer, small enough that an update takes milliseconds."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tests.learner.synthetic import tiny_model

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    tiny_model(num_key_value_heads=1, intermediate_size=16, **sizes).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
