"""The passes of one rank over the samples of a mini-batch: a forward pass alone, or one whose loss has a gradient.

All ranks make the same passes. What is found per token is put together in one order, the plan's: rank by rank,
micro-batch by micro-batch. So each rank has the figures of the whole mini-batch, and computes the same from them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from echo_queue import config
from learner.batch.micro_batches import MicroBatch, collate
from learner.batch.plan import Costs, Pieces, Share, plan
from learner.batch.prepare import SampleRow, Update
from learner.diagnostics.ratios import Floats, TokenRatios
from learner.losses import corrections
from learner.losses.inputs import LossInputs
from learner.losses.log_ratio import bounded
from learner.losses.objective import token_losses
from learner.model.policy import Policy
from learner.model.scorer import Score


class Passes:
    """The passes of this rank over its share of `part`, in the update that makes version `number`."""

    def __init__(
        self,
        policy: Policy,
        part: Update,
        settings: config.Learner,
        *,
        number: int,
        temperature: float,
        reference: Score | None,
    ) -> None:
        self._policy, self._team, self.number = policy, policy.team, number
        self._settings, self._temperature, self._reference = settings, temperature, reference
        costs = Costs.of(policy.model.config)
        self._shares = plan(part, policy.team.size, settings.micro_tokens, policy.packing, costs)
        self.own = self._shares[policy.team.rank]
        """The samples of each micro-batch of this rank."""
        self.divisor = part.divisor
        """The divisor of the sum of all ranks' losses."""
        self.proximal: Sequence[Tensor | None] = [None] * len(self.own)
        """The proximal policy's log-probabilities [K] of each of these micro-batches, once they are kept."""
        self._rows = [row for share in self._shares for row in _rows(share)]

    def keep_proximal(self, step: Callable[[], AbstractContextManager[object]]) -> None:
        """Takes the policy as it is now for the proximal one of the losses to come, by a forward pass.

        Each micro-batch runs within a `step()`.
        """
        self.proximal = [logprobs for _, logprobs in self._scores(step)]

    def loss(self, pieces: Pieces, proximal: Tensor | None, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the summed loss of a micro-batch; the sums that it reports, in the order of `TokenSums`; log ρ [K].

        All stay on the device: a figure that is read waits for every kernel before it. `limit`: M2PO's. `proximal`
        [K]: None in the first mini-batch, where the policy is the proximal one.
        """
        batch = self._batch(pieces)
        reference = None
        if self._reference is not None:
            with torch.no_grad():  # first: it may be the policy's own model, which then keeps what its gradient needs
                reference = self._reference(batch, self._temperature).logprobs
        logprobs, entropy = self._policy.score(batch, self._temperature)
        if proximal is None and self._settings.needs_proximal:
            proximal = logprobs.detach()
        if batch.old_logprobs is not None:
            proximal = torch.where(batch.old_logprobs.isnan(), logprobs.detach(), batch.old_logprobs)
        lags = self.number - 1 - batch.versions
        inputs = LossInputs(logprobs, batch.behaviour, batch.advantages, lags, batch.lengths, reference, proximal)
        losses, clipped, filtered, kl = token_losses(inputs, self._settings, limit)
        apart = batch.behaviour - logprobs
        terms = torch.stack([losses, clipped.to(losses.dtype), filtered.to(losses.dtype), apart, kl, entropy])
        return (losses * batch.weights).sum(), terms.detach().double().sum(1), bounded(-apart.detach())

    def logprobs(self, step: Callable[[], AbstractContextManager[object]]) -> Iterator[tuple[SampleRow, Floats]]:
        """Makes a forward pass, and yields all ranks' samples with the log-probabilities of their drawn tokens.

        Each micro-batch runs within a `step()`.
        """
        found = [logprobs for _, logprobs in self._scores(step)]
        with step():
            values = self.gathered(found).cpu().numpy()
        ends = np.cumsum([row.drawn for row in self._rows])
        yield from zip(self._rows, np.split(values, ends[:-1]), strict=True)

    def second_moment_limit(self, step: Callable[[], AbstractContextManager[object]]) -> float:
        """Returns M2PO's limit, from a forward pass over the mini-batch, each micro-batch within a `step()`."""
        found = [bounded(logprobs - batch.behaviour) for batch, logprobs in self._scores(step)]
        advantages = np.repeat([row.advantage for row in self._rows], [row.drawn for row in self._rows])
        with step():
            # The only wait for the device: the limit is found on the CPU, where sums are added up in one order.
            log_ratios = self.gathered(found).cpu()
        budget = self._settings.correction.budget
        return corrections.second_moment_limit(log_ratios, torch.from_numpy(advantages).to(log_ratios), budget)

    def gathered(self, own: Sequence[Tensor], sums: Tensor | None = None) -> Tensor:
        """Returns all ranks' values in the plan's order, [N] in float64. `own`: those of this rank's micro-batches.

        `sums` [T] are added up over all ranks in the same collective, and come first.
        """
        counts = [sum(row.drawn for row in _rows(share)) for share in self._shares]
        begin, count = sum(counts[: self._team.rank]), counts[self._team.rank]
        values = torch.zeros(sum(counts), dtype=torch.float64, device=self._policy.device)
        if count:
            values[begin : begin + count] = torch.cat(list(own))
        return self._team.sum(values if sums is None else torch.cat([sums, values]))

    def ratios(self, log_ratios: Floats) -> TokenRatios:
        """Joins all tokens' log ρ [N], in the plan's order, with what the figures of ratios need besides."""
        versions = np.concatenate([row.versions[row.sampled] for row in self._rows])
        return TokenRatios(log_ratios, self.number - 1 - versions, np.array([row.drawn for row in self._rows]))

    def _scores(self, step: Callable[[], AbstractContextManager[object]]) -> Iterator[tuple[MicroBatch, Tensor]]:
        """Yields each micro-batch of this rank with its log-probabilities [K], without gradient."""
        for pieces in self.own:
            with step(), torch.no_grad():
                batch = self._batch(pieces)
                logprobs = self._policy.score(batch, self._temperature).logprobs
            yield batch, logprobs

    def _batch(self, pieces: Pieces) -> MicroBatch:
        return collate(pieces, self._policy.packing).to(self._policy.device)


def _rows(share: Share) -> list[SampleRow]:
    return [row for pieces in share for piece in pieces for row in piece.rows]
