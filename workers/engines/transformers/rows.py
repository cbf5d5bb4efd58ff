"""The samples of a batch, one row each: their requests, and the tokens sampled so far.

A step costs the same few operations for any number of rows. A row is handled by itself only when it joins, ends, is
asked for, or gets other weights.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from echo_queue.records import Finish, PartialSample, Span
from workers.engines.draw import rows_by_sampling, uniforms
from workers.engines.protocol import SampleKey, SampleRequest, Sampling

INPUT, POSITION, INDEX, LIMIT = range(4)
"""Columns of the rows' state: the token that the next step reads and its position in the sequence, the index in the
sample of the token that the step draws, and the most tokens of the sample."""


@dataclass
class _BatchRow:
    """A row's request, and the versions of its tokens."""

    request: SampleRequest
    joined: int
    """The number of the step before which it joined."""
    spans: list[Span] = field(default_factory=list)


class BatchRows:
    """The rows as tensors: state [R, 4], and a table of random numbers, of tokens and of log-probabilities."""

    def __init__(self, device: torch.device) -> None:
        self._steps = 0
        self._samples: list[_BatchRow] = []
        self._by_sampling: dict[Sampling, list[int]] | None = None
        self._state = torch.zeros(0, 4, dtype=torch.long, device=device)
        self._uniform = torch.zeros(0, 0, dtype=torch.float64, device=device)
        """[R, tokens] in [0, 1): the random number of each token. Tokens and log-probabilities have the same shape."""
        self._tokens = torch.zeros(0, 0, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(0, 0, dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def keys(self) -> list[SampleKey]:
        return [sample.request.key for sample in self._samples]

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """The tokens that the next step reads, and their positions, both [R, 1]."""
        return self._state[:, INPUT : INPUT + 1], self._state[:, POSITION : POSITION + 1]

    @property
    def uniform(self) -> Tensor:
        """The random numbers [R] of the tokens that the next step draws."""
        return self._uniform.gather(1, self._state[:, INDEX : INDEX + 1]).squeeze(1)

    @property
    def by_sampling(self) -> dict[Sampling, list[int]]:
        """The rows of each sampling."""
        if self._by_sampling is None:
            self._by_sampling = rows_by_sampling(sample.request.sampling for sample in self._samples)
        return self._by_sampling

    @property
    def widest(self) -> int:
        """The length of the longest sequence without its last token, which the next step reads."""
        return max(len(sample.request.prompt) + self._next_index(sample) - 1 for sample in self._samples)

    def join(self, requests: Sequence[SampleRequest], version: int) -> None:
        """Appends a row for each request, in this order."""
        for request in requests:
            self._samples.append(_BatchRow(request, self._steps, list(request.partial_sample.spans)))
        self._by_sampling = None
        columns = max(sample.request.limit for sample in self._samples)
        partials = [request.partial_sample for request in requests]
        device = self._state.device
        state = [
            [_last(request), _length(request) - 1, len(request.partial_sample.tokens), request.limit]
            for request in requests
        ]
        self._state = torch.cat([self._state, torch.tensor(state, device=device)])
        uniform = [uniforms(request.seed, request.limit) for request in requests]
        self._uniform = _stack(self._uniform, uniform, columns)
        self._tokens = _stack(self._tokens, [partial_sample.tokens for partial_sample in partials], columns)
        self._logprobs = _stack(self._logprobs, [partial_sample.logprobs for partial_sample in partials], columns)
        self.serve(version)

    def serve(self, version: int) -> None:
        """Marks the tokens that are drawn from now on as those of `version`."""
        for sample in self._samples:
            index = self._next_index(sample)
            while sample.spans and sample.spans[-1].start >= index:
                sample.spans.pop()
            if not sample.spans or sample.spans[-1].version != version:
                sample.spans.append(Span(index, version))

    def write(self, tokens: Tensor, logprobs: Tensor, stops: Tensor) -> list[int]:
        """Appends each row's next token and its log-probability, all [R]; `stops` says which rows stop.

        Returns the rows that ended, by a stop or by their limit.
        """
        state = self._state
        index = state[:, INDEX : INDEX + 1]
        self._tokens.scatter_(1, index, tokens.int().unsqueeze(1))
        self._logprobs.scatter_(1, index, logprobs.unsqueeze(1))
        state[:, INPUT] = tokens
        state[:, POSITION : INDEX + 1] += 1
        self._steps += 1
        ended = stops | (state[:, INDEX] >= state[:, LIMIT])
        return ended.nonzero().squeeze(1).tolist()

    def partials(self, rows: Sequence[int], stops: Tensor | None = None) -> Iterator[tuple[SampleKey, PartialSample]]:
        """Yields the partial rollouts of these rows. `stops` [R]: given for rows that ended, which of them stopped."""
        if not rows:
            return
        index = torch.tensor(rows, device=self._state.device)
        tokens, logprobs = self._tokens[index].cpu().numpy(), self._logprobs[index].cpu().numpy()
        stopped = [None] * len(rows) if stops is None else stops[index].tolist()
        for number, row in enumerate(rows):
            sample = self._samples[row]
            length = self._next_index(sample)
            spans = tuple(span for span in sample.spans if span.start < length)
            finish: Finish | None = None if stopped[number] is None else "stop" if stopped[number] else "length"
            yield (
                sample.request.key,
                PartialSample(
                    tokens[number, :length].copy(),
                    logprobs[number, :length].copy(),
                    spans,
                    sample.request.partial_sample.observed,
                    finish,
                ),
            )

    def rows_of(self, tasks: Collection[str] | None) -> list[int]:
        """Returns the rows of these tasks, or of all."""
        return [row for row, sample in enumerate(self._samples) if tasks is None or sample.request.key.task in tasks]

    def leave(self, rows: Collection[int]) -> tuple[Tensor, Tensor]:
        """Removes rows: the last rows that stay move into the holes. Returns the holes and the movers, both [M]."""
        stay = len(self._samples) - len(rows)
        gone = set(rows)
        holes = [row for row in rows if row < stay]
        movers = [row for row in range(stay, len(self._samples)) if row not in gone]
        for hole, mover in zip(holes, movers, strict=True):
            self._samples[hole] = self._samples[mover]
        del self._samples[stay:]
        self._by_sampling = None
        to, by = (torch.tensor(rows, dtype=torch.long, device=self._state.device) for rows in (holes, movers))
        self._state, self._uniform, self._tokens, self._logprobs = (
            _replaced(table, to, by)[:stay] for table in (self._state, self._uniform, self._tokens, self._logprobs)
        )
        return to, by

    def _next_index(self, sample: _BatchRow) -> int:
        """Returns the index in the sample of its next token."""
        return len(sample.request.partial_sample.tokens) + self._steps - sample.joined


def sequence(request: SampleRequest) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Returns the prompt and the partial rollout as one sequence."""
    return np.concatenate([request.prompt, request.partial_sample.tokens])


def _last(request: SampleRequest) -> int:
    return int((request.partial_sample.tokens if len(request.partial_sample.tokens) else request.prompt)[-1])


def _length(request: SampleRequest) -> int:
    return len(request.prompt) + len(request.partial_sample.tokens)


def _stack(table: Tensor, rows: Sequence[np.ndarray], columns: int) -> Tensor:
    """Returns `table` [R, _] with `rows` below it, padded or cut to so many `columns`."""
    below = np.zeros((len(rows), columns), dtype=rows[0].dtype)
    for number, row in enumerate(rows):
        below[number, : len(row)] = row
    above = F.pad(table, (0, columns - table.shape[1]))
    return torch.cat([above, torch.from_numpy(below).to(table.device)])


def _replaced(table: Tensor, holes: Tensor, movers: Tensor) -> Tensor:
    if len(holes):
        table[holes] = table[movers]
    return table
