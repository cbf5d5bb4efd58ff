"""AdamW with its moments beside the parameters, or in host memory where a GPU has no room for them (`learner.offload`).

Both take the same steps, bit for bit on one device, and have the same checkpoints.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle, repeat
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import AdamW, adamw

from echo_queue import config
from echo_queue.weights.gpu_streams import on_stream
from echo_queue.weights.host_memory import rooms_for
from learner.model.sharding import local

STEP, FIRST, SECOND = MOMENTS = "step", "exp_avg", "exp_avg_sq"
"""torch's names of a parameter's number of steps, and of the running means of its gradient and of the squares."""
AT_ONCE = 1 << 26
"""Elements whose moments are on the GPU at a time: 512 MiB of both."""
STREAMS = 2
"""The streams that share them: the moments of one piece come while those of another go back."""


class Optimizer(AdamW):
    """AdamW with two moments in float32 on the device of each parameter. Matrices decay, vectors do not."""

    def __init__(self, masters: Sequence[Tensor], settings: config.Learner) -> None:
        super().__init__(
            [
                {"params": [p for p in masters if p.ndim >= 2], "weight_decay": settings.weight_decay},
                {"params": [p for p in masters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=settings.betas,
            fused=True,
        )

    def make_room(self, masters: Sequence[Tensor]) -> None:
        """Gives these parameters moments of zero, as before their first step."""
        for master in masters:
            self.state[master] = _moments(master, torch.zeros_like(master), torch.zeros_like(master))


class HostOptimizer(Optimizer):
    """The same with the moments in host memory, pinned beside a GPU: 8 bytes a parameter less on the GPU.

    A step takes the moments of a piece of a parameter to its device and back, 8 bytes a parameter each way over the
    link between them, on `STREAMS` streams in turn. Moments hold this process's rows alone.
    """

    def __init__(self, masters: Sequence[Tensor], settings: config.Learner) -> None:
        super().__init__(masters, settings)
        device = masters[0].device
        # The same at every step: the allocator keeps what each stream gives back for that stream.
        self._streams = [torch.cuda.Stream(device) for _ in range(STREAMS)] if device.type == "cuda" else []

    def make_room(self, masters: Sequence[Tensor]) -> None:
        rows = [local(master) for master in masters]
        pinned = any(one.is_cuda for one in rows)
        rooms = iter(rooms_for([one for one in rows for _ in (FIRST, SECOND)], pinned=pinned))
        for master in masters:
            self.state[master] = _moments(master, next(rooms).zero_(), next(rooms).zero_())

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Takes a step with every parameter that has a gradient. The moments are whole when it returns."""
        if closure is not None:
            raise NotImplementedError("this optimizer calls no closure")
        stepping = [(master, group) for group in self.param_groups for master in group["params"]]
        stepping = [(master, group) for master, group in stepping if master.grad is not None]
        self.make_room([master for master, _ in stepping if not self.state[master]])
        turns = self._turns()
        for master, group in stepping:
            self._step(master, group, turns)
        for stream in self._streams:
            stream.synchronize()
        for master, _ in stepping:
            self.state[master][STEP].add_(1)

    def _turns(self) -> Iterator[AbstractContextManager[object]]:
        """Yields a context for each piece: on the next stream, once what the device does now is done."""
        if not self._streams:
            yield from repeat(nullcontext())
        for stream in cycle(self._streams):
            stream.wait_stream(torch.cuda.current_stream(stream.device))
            yield on_stream(stream)

    def _step(self, master: Tensor, group: dict[str, Any], turns: Iterator[AbstractContextManager[object]]) -> None:
        """Steps piece by piece, each within the next of `turns`. The number of steps stays as it is."""
        state, gradient = self.state[master], master.grad
        assert gradient is not None
        written = [tensor.view(-1) for tensor in (local(master), state[FIRST], state[SECOND])]
        flat = [local(gradient).reshape(-1), *written]
        for slope, values, *kept in zip(*(tensor.split(AT_ONCE // STREAMS) for tensor in flat), strict=True):
            with next(turns):
                moments = [moment.to(values.device, non_blocking=True) for moment in kept]
                adamw(
                    [values],
                    [slope],
                    [moments[0]],
                    [moments[1]],
                    [],
                    [state[STEP].clone()],  # which this adds one to
                    fused=True,
                    amsgrad=False,
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    lr=group["lr"],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    maximize=False,
                )
                for moment, stepped in zip(kept, moments, strict=True):
                    moment.copy_(stepped, non_blocking=True)


def _moments(master: Tensor, first: Tensor, second: Tensor) -> dict[str, Tensor]:
    return {STEP: torch.zeros((), dtype=torch.float32, device=master.device), FIRST: first, SECOND: second}
