"""Which samples each rank trains, in which micro-batches: a function of the update, alike on all ranks.

- Each sample that is trained lies in exactly one micro-batch of exactly one rank. One rank has the micro-batches of
  `cut`, in their order.
- All ranks have the same number of micro-batches, because all of them gather the weights for each. The n-th ones of all
  ranks are computed at the same time, so they have similar loads; the largest come first.
- A prompt's samples stay together unless they have too many tokens for a micro-batch, or that would leave the ranks
  unbalanced (`learner.batch.assignment`) or with unequal numbers of micro-batches.
- Ranks on unlike machines agree: sums of floats are taken in one order, never by a kernel that chooses it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PretrainedConfig

from echo_queue.errors import ConfigError
from echo_queue.models.shape import ATTENTION, MATMUL, shape_of
from learner.batch.assignment import UNEVEN, Loads, Part, assign
from learner.batch.micro_batches import cut, fitting_pieces
from learner.batch.packing import Packing
from learner.batch.prepare import PromptSamples, SampleRow, Update

Pieces = tuple[PromptSamples, ...]
"""The samples of one micro-batch."""
Share = tuple[Pieces, ...]
"""The micro-batches of one rank."""
Loaded = tuple[float, Pieces]
"""A micro-batch and what it costs."""

_OBSERVED = SampleRow(np.zeros(2, np.int32), np.zeros(2, np.float32), np.zeros(2, np.bool_), 0.0)
FILLER: Pieces = (PromptSamples(np.zeros(3, np.int32), (_OBSERVED,)),)
"""A micro-batch without targets, whose gradient is zero. It has more than one token of each kind, because compiled
layers would be compiled once more for a dimension of 1."""


@dataclass(frozen=True)
class Costs:
    """The costs of a micro-batch's parts, relative to one another."""

    per_token: float
    """Each token's cost in the linear layers"""
    per_pair: float
    """The cost of each pair of a query and a key that attend"""
    per_target: float = 0.0
    """The cost in the output embeddings of each token that the model drew"""

    @classmethod
    def of(cls, model_config: PretrainedConfig) -> "Costs":
        """Returns the FLOP of forward and backward pass, by `echo_queue.models.shape`.

        A layer of a family that it does not know counts as 12 · hidden² weights, like the plain transformer's.
        """
        text = model_config.get_text_config()
        try:
            shape = shape_of(text.to_dict(), "model.base")
        except ConfigError:
            layers, hidden, head = text.num_hidden_layers, text.hidden_size, text.vocab_size * text.hidden_size
            return cls(MATMUL * 12 * layers * hidden**2, ATTENTION * layers * hidden, MATMUL * head)
        return cls(
            per_token=MATMUL * (shape.matmul - shape.embedding),
            per_pair=ATTENTION * shape.layers * shape.queries,
            per_target=MATMUL * shape.embedding,
        )

    def prompt(self, samples: PromptSamples) -> float:
        """Returns what the prompt costs; its last token counts as each sample's first input."""
        shared = len(samples.prompt) - 1
        return self.per_token * shared + self.per_pair * (shared * (shared + 1) // 2)

    def rows(self, samples: PromptSamples) -> Loads:
        """Returns what each sample costs beside its prompt, [R]."""
        tokens = np.array([len(row.tokens) for row in samples.rows], np.float64)
        drawn = np.array([np.count_nonzero(row.sampled) for row in samples.rows])
        pairs = tokens * (len(samples.prompt) - 1) + tokens * (tokens + 1) / 2
        loads: Loads = self.per_token * tokens + self.per_target * drawn + self.per_pair * pairs
        return loads

    def total(self, batch: Pieces) -> float:
        """Returns what a micro-batch costs."""
        return sum((self.prompt(piece) + float(np.cumsum(self.rows(piece))[-1]) for piece in batch), 0.0)


def plan(update: Update, ranks: int, micro_tokens: int, packing: type[Packing], costs: Costs) -> tuple[Share, ...]:
    """Returns the share of each rank, all of equal length.

    A micro-batch has at most `micro_tokens` tokens, as `packing` counts them, or one sample.
    """
    if ranks == 1:
        return (tuple(cut(update.groups, micro_tokens, packing)),)
    parts = [
        Part(number, piece, costs.prompt(piece), costs.rows(piece))
        for number, group in enumerate(update.groups)
        for piece in fitting_pieces(group, micro_tokens, packing)
    ]

    def batches_of(sets: int) -> list[Loaded]:
        """Assigns the samples to sets and cuts each set by itself, so that a micro-batch has similar lengths."""
        cuts = (batch for own in assign(parts, sets) for batch in cut(own, micro_tokens, packing))
        return _filled_up([(costs.total(batch), batch) for batch in cuts], ranks, costs)

    batches, even = batches_of(ranks), sum(part.load for part in parts) / ranks
    steps = len(batches) // ranks
    # A set for each micro-batch evens out few large steps, and does not matter among many.
    for count in (steps, steps + 1):
        if steps > 1 and _time(batches, ranks) > (1 + UNEVEN) * even:
            batches = min(batches, batches_of(ranks * count), key=lambda found: _time(found, ranks))
    return _dealt(batches, ranks)


def _filled_up(batches: Iterable[Loaded], ranks: int, costs: Costs) -> list[Loaded]:
    """Divides the largest micro-batches until their number is a multiple of `ranks`. Returns the largest first.

    Where none can be divided any further, micro-batches that train nothing are added.
    """
    filled = _largest_first(batches)
    while len(filled) % ranks:
        place = next((place for place, (_, batch) in enumerate(filled) if _samples(batch) > 1), None)
        added = [FILLER] if place is None else _halves(filled.pop(place)[1], costs)
        filled = _largest_first([*filled, *((costs.total(batch), batch) for batch in added)])
    return filled


def _halves(batch: Pieces, costs: Costs) -> list[Pieces]:
    """Divides a micro-batch in its order, before the sample at which the larger half is smallest."""
    own = np.concatenate([costs.rows(piece) for piece in batch])
    prompts = np.concatenate([np.full(len(piece.rows), costs.prompt(piece)) for piece in batch])
    begins = np.concatenate([np.arange(len(piece.rows)) == 0 for piece in batch])
    ends = np.append(begins[1:], True)
    before = np.cumsum(own + prompts * begins)[:-1]
    after = np.cumsum((own + prompts * ends)[::-1])[::-1][1:]
    count = int(np.argmin(np.maximum(before, after))) + 1
    return [_between(batch, 0, count), _between(batch, count, len(own))]


def _between(batch: Pieces, begin: int, end: int) -> Pieces:
    """Returns the micro-batch's samples from `begin` until before `end`, counted over all of its prompts."""
    found, first = [], 0
    for piece in batch:
        rows = piece.rows[max(0, begin - first) : max(0, end - first)]
        first += len(piece.rows)
        if rows:
            found.append(PromptSamples(piece.prompt, rows))
    return tuple(found)


def _dealt(batches: Sequence[Loaded], ranks: int) -> tuple[Share, ...]:
    """Deals one micro-batch to each rank at a time, the larger ones to those with less so far. `batches`: the largest
    first."""
    shares: list[list[Pieces]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for begin in range(0, len(batches), ranks):
        least_first = sorted(range(ranks), key=loads.__getitem__)
        for rank, (load, batch) in zip(least_first, batches[begin : begin + ranks], strict=True):
            shares[rank].append(batch)
            loads[rank] += load
    return tuple(tuple(share) for share in shares)


def _time(batches: Sequence[Loaded], ranks: int) -> float:
    """Returns what all steps cost, each as much as the largest of its micro-batches. `batches`: the largest first."""
    return sum(load for load, _ in batches[::ranks])


def _largest_first(batches: Iterable[Loaded]) -> list[Loaded]:
    return sorted(batches, key=lambda batch: batch[0], reverse=True)


def _samples(batch: Pieces) -> int:
    return sum(len(piece.rows) for piece in batch)
