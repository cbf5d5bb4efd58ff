"""The way back from the present weights to those of the last versions, as they were published.

- Of each optimizer step a rank keeps the values that it replaced in its own rows, in the published form: a reverse
  delta. In bfloat16 a step changes a few per cent of them; in float32 nearly all.
- The masters themselves become an older version, one reverse delta after the other, and afterwards have the bits again
  that they had. No second model and no message between the ranks is needed.
- A learner that starts knows the version that it starts at, and those that it makes: what earlier processes trained is
  not kept.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from echo_queue.weights.delta.codes import flat
from learner.model.policy import Policy
from learner.model.sharding import local, rounded_type


class Values(NamedTuple):
    """Values [C] of a tensor of N elements; `positions` [C] says of which, None of all."""

    values: Tensor
    positions: Tensor | None

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.positions is None else self.positions.nbytes)

    def give_to(self, row: Tensor) -> None:
        """Gives the values to the tensor's elements [N]."""
        if self.positions is None:
            row.copy_(self.values)
        else:
            row.index_copy_(0, self.positions.long(), self.values.to(row.dtype))


class PastVersions:
    """The last versions of `policy`, in this rank's rows. `most`: the largest lag of a token that is trained, S."""

    def __init__(self, policy: Policy, most: int) -> None:
        self._policy, self._most = policy, most
        self._deltas: dict[int, list[dict[str, Values]]] = {}
        """The reverse deltas of the steps that made each version, in their order."""

    @property
    def nbytes(self) -> int:
        """The memory of all reverse deltas: at most S times this rank's rows in the published form."""
        return sum(delta.nbytes for steps in self._deltas.values() for step in steps for delta in step.values())

    def knows(self, version: int, present: int) -> bool:
        """Returns whether the weights of `version` can be made from those of `present`."""
        return all(made in self._deltas for made in range(version + 1, present + 1))

    def begin(self, number: int) -> None:
        """Begins the update that makes version `number`; what only older updates needed is let go."""
        self._deltas[number] = []
        for made in [made for made in self._deltas if made <= number - self._most]:
            del self._deltas[made]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keeps what the optimizer step in the block replaces, as a part of the update that began last."""
        if not self._most:
            yield
            return
        rows = self._rows()
        before = {name: row.to(rounded_type(row, self._policy.dtype), copy=True) for name, row in rows.items()}
        yield
        # All counts are read at once: each value that is read waits for every kernel before it.
        counts = torch.stack([_differs(before[name], row).sum() for name, row in rows.items()]).tolist()
        found = {
            name: _replaced(before.pop(name), row, count)
            for (name, row), count in zip(rows.items(), counts, strict=True)
        }
        self._deltas[max(self._deltas)].append({name: delta for name, delta in found.items() if delta is not None})

    @contextmanager
    def visit(self, present: int, oldest: int) -> Iterator[Callable[[int], None]]:
        """Yields a function that turns the policy into the version that it is given, each older than the one before.

        None may be older than `oldest`, which must be known. After the block the policy is what it was, bit for bit.
        """
        rows, at = self._rows(), present
        steps = [step for made in range(present, oldest, -1) for step in reversed(self._deltas[made])]
        kept = {name: _kept(row, [step[name] for step in steps if name in step]) for name, row in rows.items()}
        self._policy.before_change()

        def go_back_to(version: int) -> None:
            nonlocal at
            for made in range(at, version, -1):
                for step in reversed(self._deltas[made]):
                    for name, delta in step.items():
                        delta.give_to(rows[name])
            at = version
            self._policy.forget_gathered()

        try:
            yield go_back_to
        finally:
            for name, values in kept.items():
                values.give_to(rows[name])
            self._policy.forget_gathered()

    def _rows(self) -> dict[str, Tensor]:
        """Returns views of this rank's rows of all masters, each flattened."""
        return {name: local(master.detach()).view(-1) for name, master in self._policy.masters.items()}


def _differs(before: Tensor, row: Tensor) -> Tensor:
    """Returns which values of `row` [N], rounded to the type of `before` [N], are not those of `before`."""
    return flat(before) != flat(row.to(before.dtype))


def _replaced(before: Tensor, row: Tensor, count: int) -> Values | None:
    """Returns the `count` values in `before` [N] that `row` [N] does not have any more (`_differs`); None without any.

    Positions are left out where values of all elements take no more memory.
    """
    index = _index_type(row)
    if not count:
        return None
    if count * (before.itemsize + index.itemsize) >= before.nbytes:
        return Values(before, None)
    # The size is given, since otherwise torch would read it from the device.
    positions = torch.nonzero_static(_differs(before, row), size=count).view(-1)
    return Values(before[positions], positions.to(index))


def _kept(row: Tensor, deltas: Sequence[Values]) -> Values:
    """Returns a copy of the elements of `row` [N] that any of `deltas` would change, or of all if that is less.

    One that several change is in it as often: to find it, the host would wait for the device.
    """
    places = [delta.positions for delta in deltas if delta.positions is not None]
    if len(places) < len(deltas) or 2 * sum(map(len, places)) >= len(row) > 0:
        return Values(row.clone(), None)
    positions = torch.cat(places) if places else torch.empty(0, dtype=_index_type(row), device=row.device)
    return Values(row[positions.long()], positions)


def _index_type(row: Tensor) -> torch.dtype:
    return torch.int32 if len(row) <= torch.iinfo(torch.int32).max else torch.int64
