"""The engine of a server: the samples under way, and what becomes of them when it swaps, fails or is restarted."""

import logging
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import count

from torch import Tensor

from echo_queue.errors import ConfigError, EchoQueueError, Problem
from echo_queue.records import Finish, PartialSample, Version
from echo_queue.weights.manifest import TensorInfo
from workers.engines import Key, Request, Sampling, check
from workers.engines.checkpoint import misfits, open_model, stop_tokens
from workers.engines.http.loader import PAUSE_S, away_too_long, patiently
from workers.engines.http.sample import Sample
from workers.engines.http.server import WHERE, Away, Chunk, Refused, Server
from workers.engines.http.streams import Event, Streams
from workers.engines.http.trial import negated, try_out, unfit
from workers.engines.http.weights import Place, Weights

log = logging.getLogger(__name__)

STEP_S = 0.2
"""A step ends after so long, whether anything has come or not."""
END_S = 10.0
"""Streams that were aborted have ended by then, or are given up."""
FINISHES: dict[str | None, Finish] = {"stop": "stop", "length": "length"}


class HttpEngine:
    name = "http"

    def __init__(
        self, folder: str, version: Version, place: Place, *, dtype: str, longest: int, sampling: Sampling
    ) -> None:
        """`folder`: of the model that the server was started with, or its hub name. `longest`: most tokens of a sample.

        Raises `ConfigError` for a server that is not there within the deadline, or does not fit.
        """
        self.version = version
        self.sampled = 0
        self._sampling, self._deadline_s = sampling, place.deadline_s
        self._server = Server(place.url, place.key, place.deadline_s)
        self._streams = Streams(self._server, place.deadline_s, place.streams)
        self._samples: dict[Key, Sample] = {}
        self._by_stream: dict[str, Sample] = {}
        self._name, self._numbers = secrets.token_hex(4), count(1)
        self._moved_s = time.monotonic()
        self._failed: EchoQueueError | None = None
        """Why it is not known what the server has; nothing is begun until it is."""
        try:
            self._weights = self._open(folder, place, dtype, longest)
        except EchoQueueError as error:
            self._streams.close()
            self._server.close()
            raise ConfigError(*error.problems) from error

    @property
    def running(self) -> int:
        return len(self._samples)

    def add(self, requests: Sequence[Request]) -> None:
        check(requests, self._samples)
        if not self._samples:
            self._moved_s = time.monotonic()
        self._samples |= {request.key: Sample(request) for request in requests}

    def step(self) -> Mapping[Key, PartialSample]:
        """More tokens of some samples, or after `STEP_S` none. Raises `DeadlineError` once none have come for too long,
        and `Refused` for what waiting does not fix."""
        if not self._samples:
            return {}
        if self._failed is not None:
            self._fix()
        if self._failed is None:
            self._begin()
        self._hear(STEP_S)
        if time.monotonic() - self._moved_s > self._deadline_s:
            silent = Away(Problem(WHERE, f"{self._server.url} generates nothing", "see its own log"))
            raise away_too_long(self._failed or silent, self._deadline_s)
        ended = [key for key, sample in self._samples.items() if sample.finish]
        return {key: self._samples.pop(key).partial_sample() for key in ended}

    def partials(self, tasks: Collection[str] | None = None) -> Mapping[Key, PartialSample]:
        self._hear(0.0)
        if self._failed is None and any(sample.pending for sample in self._samples.values()):
            self._confirm()
        return {
            key: sample.partial_sample() for key, sample in self._samples.items() if tasks is None or key.task in tasks
        }

    def abort(self, tasks: Collection[str]) -> None:
        leaving = [self._samples.pop(key) for key in list(self._samples) if key.task in tasks]
        self._leave(leaving)

    def load(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        problems = list(misfits(self._weights.parameters, tensors, version))
        if problems:
            raise ConfigError(*problems)
        folder = self._weights.put(tensors)  # while the server goes on generating
        self._interrupt()
        try:
            patiently(lambda: self._weights.give(version, folder), self._deadline_s)
        except EchoQueueError as error:
            self._failed = error
            raise
        self.version, self._failed, self._moved_s = version, None, time.monotonic()

    def weight(self, name: str) -> Tensor:
        return self._weights.read(name)

    def holds(self, info: TensorInfo) -> bool:
        return patiently(lambda: self._weights.holds(info), self._deadline_s)

    def close(self) -> None:
        self.abort([key.task for key in self._samples])
        self._streams.close()
        self._server.close()
        self._weights.close()

    def _open(self, folder: str, place: Place, dtype: str, longest: int) -> Weights:
        """The server has this model's weights, and is known to take what it is given."""
        model = open_model(folder, dtype).eval()
        self._settings = patiently(self._server.settings, self._deadline_s)
        problems = list(unfit(self._settings, model.config, dtype, longest))
        if problems:
            raise ConfigError(*problems)
        self._stop_tokens = sorted({*self._sampling.stop_tokens, *stop_tokens(model)})
        state = model.state_dict(keep_vars=True)
        weights = Weights(self._server, place, state)
        try:
            with negated(model):
                self._give(weights, state)
                try_out(self._streams, model, dtype, self._sampling, weights.label)
            self._give(weights, state)
            weights.learn()
        except EchoQueueError:
            weights.close()
            raise
        return weights

    def _give(self, weights: Weights, tensors: Mapping[str, Tensor]) -> None:
        folder = weights.put(tensors)
        patiently(lambda: weights.give(self.version, folder), self._deadline_s)

    def _begin(self) -> None:
        """The samples that nothing generates, from where they are."""
        for sample in self._samples.values():
            if not sample.stream and not sample.finish:
                sample.stream = f"{self._name}-{next(self._numbers)}"
                self._by_stream[sample.stream] = sample
                wanted = sample.wanted(self._sampling, self._stop_tokens, self._weights.label)
                self._streams.begin(sample.stream, wanted)

    def _hear(self, wait_s: float) -> None:
        for event in self._streams.events(wait_s):
            sample = self._by_stream.get(event.stream)
            if sample is not None:
                self._take(event, sample)

    def _take(self, event: Event, sample: Sample) -> None:
        if event.last:
            del self._by_stream[sample.stream]
            sample.stream = ""
        if isinstance(event.said, Refused):
            raise event.said
        if not isinstance(event.said, Chunk):
            self._failed = event.said
            return
        if event.said.tokens:
            self._moved_s = time.monotonic()
        self.sampled += len(event.said.tokens)
        sample.append(event.said.tokens, event.said.logprobs)
        if event.last:
            self._end(sample, event.said)

    def _end(self, sample: Sample, last: Chunk) -> None:
        """What has come counts if it is all of the label that it was begun under; else the sample goes on from before.

        A sample that was aborted goes on in any case.
        """
        if sample.pending and last.labels != {self._weights.label}:
            sample.drop()
            what = f"{self._server.url} drew tokens with {', '.join(sorted(last.labels)) or 'unnamed'} weights"
            self._failed = Away(Problem(WHERE, what, "give each worker a server of its own"))
            return
        sample.confirm(self.version.number)
        sample.finish = FINISHES.get(last.finish)

    def _confirm(self) -> None:
        """What has come counts if the server still has what it was given."""
        try:
            if self._weights.served:
                for sample in self._samples.values():
                    sample.confirm(self.version.number)
            else:
                self._failed = Away(Problem(WHERE, f"{self._server.url} was restarted", "see its own log"))
        except Away as error:
            self._failed = error

    def _fix(self) -> None:
        """One try to know again what the server has; where that is not what it was given, it is given it anew."""
        log.warning("the server failed: %s", self._failed)
        self._failed = None
        self._confirm()
        if self._failed is None:
            return
        self._leave(list(self._samples.values()))
        try:
            if (settings := self._server.settings()) != self._settings:
                what = f"{self._server.url} was started again with {settings}, before it was {self._settings}"
                raise Refused(Problem(WHERE, what, "start it as it was started before"))
            self._weights.again(self.version)
            self._failed, self._moved_s = None, time.monotonic()
        except Away as error:
            self._failed = error

    def _interrupt(self) -> None:
        """Nothing is generated any more; what has come and counts is kept."""
        give_up = time.monotonic() + END_S
        try:
            while self._by_stream and time.monotonic() < give_up:
                self._streams.abort(list(self._by_stream))
                self._hear(PAUSE_S)
        except EchoQueueError as error:
            log.warning("the server does not end what it generates: %s", error)
        self._leave(list(self._samples.values()))

    def _leave(self, samples: Sequence[Sample]) -> None:
        """They are heard no more, and keep what counts."""
        self._streams.cut([sample.stream for sample in samples if sample.stream])
        for sample in samples:
            sample.drop()
            self._by_stream.pop(sample.stream, None)
            sample.stream = ""
