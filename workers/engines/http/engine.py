"""The engine over a server: the running samples, also when the server swaps weights, fails or is restarted."""

import logging
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import count

from torch import Tensor

from echo_queue.errors import ConfigError, EchoQueueError, Problem
from echo_queue.records import Finish, PartialSample, Version
from echo_queue.weights.manifest import TensorInfo
from workers.engines.http.sample import HttpSample
from workers.engines.http.server import WHERE, Server, ServerAway, ServerRefused, StreamChunk
from workers.engines.http.server_trial import negated, try_out, unfit
from workers.engines.http.server_weights import ServerAccess, ServerWeights
from workers.engines.http.streams import StreamEvent, Streams
from workers.engines.http.weight_loader import PAUSE_S, away_too_long, patiently
from workers.engines.model_folder import misfits, open_model, stop_tokens
from workers.engines.protocol import SampleKey, SampleRequest, Sampling, check

log = logging.getLogger(__name__)

STEP_S = 0.2
"""A step ends after so long, even if no token has arrived."""
END_S = 10.0
"""Streams that were aborted and have not ended by then are cut."""
FINISHES: dict[str | None, Finish] = {"stop": "stop", "length": "length"}


class HttpEngine:
    """The `Engine` over a vLLM server."""

    name = "http"

    def __init__(
        self,
        folder: str,
        version: Version,
        access: ServerAccess,
        *,
        dtype: str,
        longest: int,
        trial: Sampling,
        stop_tokens: Sequence[int] = (),
    ) -> None:
        """`folder`: the model that the server was started with, or its hub name. `longest`: most tokens of a sample.

        `trial`: the sampling with which the server is tried out. `stop_tokens` end a sample, as do those that the
        model's generation settings name.

        Raises `ConfigError` for a server that does not answer within the deadline, or does not fit.
        """
        self.version = version
        self.sampled = 0
        self._stop_tokens, self._deadline_s = sorted(stop_tokens), access.deadline_s
        self._server = Server(access.url, access.key, access.deadline_s)
        self._streams = Streams(self._server, access.deadline_s, access.streams)
        self._samples: dict[SampleKey, HttpSample] = {}
        self._by_stream: dict[str, HttpSample] = {}
        self._name, self._numbers = secrets.token_hex(4), count(1)
        self._progress_s = time.monotonic()
        self._failed: EchoQueueError | None = None
        """The error after which the server's weights are unknown; no sample is begun until they are known."""
        try:
            self._weights = self._open(folder, access, dtype, longest, trial)
        except EchoQueueError as error:
            self._streams.close()
            self._server.close()
            raise ConfigError(*error.problems) from error

    @property
    def running(self) -> int:
        return len(self._samples)

    def add(self, requests: Sequence[SampleRequest]) -> None:
        check(requests, self._samples)
        if not self._samples:
            self._progress_s = time.monotonic()
        self._samples |= {request.key: HttpSample(request) for request in requests}

    def step(self) -> Mapping[SampleKey, PartialSample]:
        """Takes the tokens that have arrived; there may be none after `STEP_S`.

        Raises `DeadlineError` if none arrived for too long, and `ServerRefused` for an error that waiting does not fix.
        """
        if not self._samples:
            return {}
        if self._failed is not None:
            self._fix()
        if self._failed is None:
            self._begin()
        self._take_events(STEP_S)
        if time.monotonic() - self._progress_s > self._deadline_s:
            silent = ServerAway(Problem(WHERE, f"{self._server.url} generates nothing", "check the server's log"))
            raise away_too_long(self._failed or silent, self._deadline_s)
        ended = [key for key, sample in self._samples.items() if sample.finish]
        return {key: self._samples.pop(key).partial_sample() for key in ended}

    def partials(self, tasks: Collection[str] | None = None) -> Mapping[SampleKey, PartialSample]:
        self._take_events(0.0)
        if self._failed is None and any(sample.pending for sample in self._samples.values()):
            self._confirm()
        return {
            key: sample.partial_sample() for key, sample in self._samples.items() if tasks is None or key.task in tasks
        }

    def abort(self, tasks: Collection[str]) -> None:
        aborted = [self._samples.pop(key) for key in list(self._samples) if key.task in tasks]
        self._stop_streams(aborted)

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
        self.version, self._failed, self._progress_s = version, None, time.monotonic()

    def weight(self, name: str) -> Tensor:
        return self._weights.read(name)

    def holds(self, info: TensorInfo) -> bool:
        return patiently(lambda: self._weights.holds(info), self._deadline_s)

    def close(self) -> None:
        self.abort([key.task for key in self._samples])
        self._streams.close()
        self._server.close()
        self._weights.close()

    def _open(self, folder: str, access: ServerAccess, dtype: str, longest: int, trial: Sampling) -> ServerWeights:
        """Checks that the server fits and loads what it is given, and gives it the weights of `folder`."""
        model = open_model(folder, dtype).eval()
        self._settings = patiently(self._server.settings, self._deadline_s)
        problems = list(unfit(self._settings, model.config, dtype, longest))
        if problems:
            raise ConfigError(*problems)
        self._stop_tokens = sorted({*self._stop_tokens, *stop_tokens(model)})
        state = model.state_dict(keep_vars=True)
        weights = ServerWeights(self._server, access, state)
        try:
            with negated(model):
                self._give(weights, state)
                try_out(self._streams, model, dtype, trial, weights.label)
            self._give(weights, state)
            weights.learn()
        except EchoQueueError:
            weights.close()
            raise
        return weights

    def _give(self, weights: ServerWeights, tensors: Mapping[str, Tensor]) -> None:
        folder = weights.put(tensors)
        patiently(lambda: weights.give(self.version, folder), self._deadline_s)

    def _begin(self) -> None:
        """Begins a stream for each sample without one, from the tokens that count."""
        for sample in self._samples.values():
            if not sample.stream and not sample.finish:
                sample.stream = f"{self._name}-{next(self._numbers)}"
                self._by_stream[sample.stream] = sample
                request = sample.server_request(self._stop_tokens, self._weights.label)
                self._streams.begin(sample.stream, request)

    def _take_events(self, wait_s: float) -> None:
        for event in self._streams.events(wait_s):
            sample = self._by_stream.get(event.stream)
            if sample is not None:
                self._take(event, sample)

    def _take(self, event: StreamEvent, sample: HttpSample) -> None:
        if event.last:
            del self._by_stream[sample.stream]
            sample.stream = ""
        if isinstance(event.outcome, ServerRefused):
            raise event.outcome
        if not isinstance(event.outcome, StreamChunk):
            self._failed = event.outcome
            return
        if event.outcome.tokens:
            self._progress_s = time.monotonic()
        self.sampled += len(event.outcome.tokens)
        sample.append(event.outcome.tokens, event.outcome.logprobs)
        if event.last:
            self._end(sample, event.outcome)

    def _end(self, sample: HttpSample, last: StreamChunk) -> None:
        """Ends a stream. Its tokens count if all have the label under which it was begun; else they are dropped.

        A sample whose stream was aborted or dropped continues by another stream.
        """
        if sample.pending and last.labels != {self._weights.label}:
            sample.drop()
            what = f"{self._server.url} drew tokens with {', '.join(sorted(last.labels)) or 'unnamed'} weights"
            self._failed = ServerAway(Problem(WHERE, what, "give each worker a server of its own"))
            return
        sample.confirm(self.version.number)
        sample.finish = FINISHES.get(last.finish)

    def _confirm(self) -> None:
        """Makes the tokens that arrived count if the server still has the weights that it was given."""
        try:
            if self._weights.served:
                for sample in self._samples.values():
                    sample.confirm(self.version.number)
            else:
                self._failed = ServerAway(Problem(WHERE, f"{self._server.url} was restarted", "check the server's log"))
        except ServerAway as error:
            self._failed = error

    def _fix(self) -> None:
        """Tries once to find out which weights the server has; gives it the weights again if it has lost them."""
        log.warning("the server failed: %s", self._failed)
        self._failed = None
        self._confirm()
        if self._failed is None:
            return
        self._stop_streams(list(self._samples.values()))
        try:
            if (settings := self._server.settings()) != self._settings:
                what = f"{self._server.url} was started again with {settings}, before it was {self._settings}"
                raise ServerRefused(Problem(WHERE, what, "start it as it was started before"))
            self._weights.again(self.version)
            self._failed, self._progress_s = None, time.monotonic()
        except ServerAway as error:
            self._failed = error

    def _interrupt(self) -> None:
        """Ends all streams; tokens that count are kept."""
        give_up = time.monotonic() + END_S
        try:
            while self._by_stream and time.monotonic() < give_up:
                self._streams.abort(list(self._by_stream))
                self._take_events(PAUSE_S)
        except EchoQueueError as error:
            log.warning("the server does not end its streams: %s", error)
        self._stop_streams(list(self._samples.values()))

    def _stop_streams(self, samples: Sequence[HttpSample]) -> None:
        """Cuts the streams of these samples, which keep the tokens that count."""
        self._streams.cut([sample.stream for sample in samples if sample.stream])
        for sample in samples:
            sample.drop()
            self._by_stream.pop(sample.stream, None)
            sample.stream = ""
