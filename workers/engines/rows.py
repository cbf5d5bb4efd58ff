"""The samples of a batch, one row each: what they were asked for, and what was sampled so far.

A step costs the same few operations for any number of rows; a row is looked at by itself only when it joins, ends, is
asked for or is given other weights.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from echo_queue.records import Finish, PartialSample, Span
from workers.engines import Key, Request
from workers.engines.draw import uniforms

INPUT, POSITION, PLACE, LIMIT = range(4)
"""Columns of the rows' state: the token that the next step reads and its position in the sequence, the place of the
token that it draws in the partial rollout, and the most tokens the partial rollout may have."""


@dataclass
class _Sample:
    request: Request
    joined: int
    """The step before which it joined."""
    spans: list[Span] = field(default_factory=list)


class Rows:
    def __init__(self, device: torch.device) -> None:
        self._steps = 0
        self._samples: list[_Sample] = []
        self._state = torch.zeros(0, 4, dtype=torch.long, device=device)
        self._uniform = torch.zeros(0, 0, dtype=torch.float64, device=device)
        """[R, places] in [0, 1): the randomness of each token. So are the tokens and their log-probabilities."""
        self._tokens = torch.zeros(0, 0, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(0, 0, dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def keys(self) -> list[Key]:
        return [sample.request.key for sample in self._samples]

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """What the next step reads: tokens and their positions, both [R, 1]."""
        return self._state[:, INPUT : INPUT + 1], self._state[:, POSITION : POSITION + 1]

    @property
    def uniform(self) -> Tensor:
        """[R]: the random number of the token that the next step draws."""
        return self._uniform.gather(1, self._state[:, PLACE : PLACE + 1]).squeeze(1)

    @property
    def widest(self) -> int:
        """Tokens that the longest sequence has before the next step reads its last one."""
        return max(len(sample.request.prompt) + self._place(sample) - 1 for sample in self._samples)

    def join(self, requests: Sequence[Request], version: int) -> None:
        """They come below the others, in this order."""
        for request in requests:
            self._samples.append(_Sample(request, self._steps, list(request.partial_sample.spans)))
        places = max(sample.request.limit for sample in self._samples)
        partials = [request.partial_sample for request in requests]
        device = self._state.device
        state = [
            [_last(request), _length(request) - 1, len(request.partial_sample.tokens), request.limit]
            for request in requests
        ]
        self._state = torch.cat([self._state, torch.tensor(state, device=device)])
        uniform = [uniforms(request.seed, request.limit) for request in requests]
        self._uniform = _stack(self._uniform, uniform, places)
        self._tokens = _stack(self._tokens, [partial_sample.tokens for partial_sample in partials], places)
        self._logprobs = _stack(self._logprobs, [partial_sample.logprobs for partial_sample in partials], places)
        self.serve(version)

    def serve(self, version: int) -> None:
        """Of this version are the tokens that are drawn from now on."""
        for sample in self._samples:
            place = self._place(sample)
            while sample.spans and sample.spans[-1].start >= place:
                sample.spans.pop()
            if not sample.spans or sample.spans[-1].version != version:
                sample.spans.append(Span(place, version))

    def write(self, tokens: Tensor, logprobs: Tensor, stops: Tensor) -> list[int]:
        """Each row's next token, whether it stops, and its log-probability, all [R]. Returns which rows ended."""
        state = self._state
        place = state[:, PLACE : PLACE + 1]
        self._tokens.scatter_(1, place, tokens.int().unsqueeze(1))
        self._logprobs.scatter_(1, place, logprobs.unsqueeze(1))
        state[:, INPUT] = tokens
        state[:, POSITION : PLACE + 1] += 1
        self._steps += 1
        ended = stops | (state[:, PLACE] >= state[:, LIMIT])
        return ended.nonzero().squeeze(1).tolist()

    def partials(self, rows: Sequence[int], stops: Tensor | None = None) -> Iterator[tuple[Key, PartialSample]]:
        """Of these rows; `stops` [R] if they ended."""
        if not rows:
            return
        index = torch.tensor(rows, device=self._state.device)
        tokens, logprobs = self._tokens[index].cpu().numpy(), self._logprobs[index].cpu().numpy()
        stopped = [None] * len(rows) if stops is None else stops[index].tolist()
        for number, row in enumerate(rows):
            sample = self._samples[row]
            length = self._place(sample)
            spans = tuple(span for span in sample.spans if span.start < length)
            finish: Finish | None = None if stopped[number] is None else "stop" if stopped[number] else "length"
            made = tokens[number, :length].copy(), logprobs[number, :length].copy()
            yield sample.request.key, PartialSample(*made, spans, sample.request.partial_sample.observed, finish)

    def of(self, tasks: Collection[str] | None) -> list[int]:
        """The rows of these tasks, or all."""
        return [row for row, sample in enumerate(self._samples) if tasks is None or sample.request.key.task in tasks]

    def leave(self, rows: Collection[int]) -> tuple[Tensor, Tensor]:
        """The last rows that stay move to the places of those that leave: returns whither and from where, both [M]."""
        stay = len(self._samples) - len(rows)
        gone = set(rows)
        holes = [row for row in rows if row < stay]
        movers = [row for row in range(stay, len(self._samples)) if row not in gone]
        for hole, mover in zip(holes, movers, strict=True):
            self._samples[hole] = self._samples[mover]
        del self._samples[stay:]
        to, by = (torch.tensor(places, dtype=torch.long, device=self._state.device) for places in (holes, movers))
        self._state, self._uniform, self._tokens, self._logprobs = (
            _replaced(table, to, by)[:stay] for table in (self._state, self._uniform, self._tokens, self._logprobs)
        )
        return to, by

    def _place(self, sample: _Sample) -> int:
        """Where in its partial rollout the next token is."""
        return len(sample.request.partial_sample.tokens) + self._steps - sample.joined


def sequence(request: Request) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """All tokens that there are: the prompt and the partial rollout."""
    return np.concatenate([request.prompt, request.partial_sample.tokens])


def _last(request: Request) -> int:
    return int((request.partial_sample.tokens if len(request.partial_sample.tokens) else request.prompt)[-1])


def _length(request: Request) -> int:
    return len(request.prompt) + len(request.partial_sample.tokens)


def _stack(table: Tensor, rows: Sequence[np.ndarray], places: int) -> Tensor:
    """`table` [R, _] with `rows` below it, cut or filled up to so many `places`."""
    below = np.zeros((len(rows), places), dtype=rows[0].dtype)
    for number, row in enumerate(rows):
        below[number, : len(row)] = row
    above = F.pad(table, (0, places - table.shape[1]))
    return torch.cat([above, torch.from_numpy(below).to(table.device)])


def _replaced(table: Tensor, holes: Tensor, movers: Tensor) -> Tensor:
    if len(holes):
        table[holes] = table[movers]
    return table
