"""AdamW with its moments beside the parameters, or in host memory where a GPU has no room for them (`learner.offload`).

Both take the same steps, bit for bit on one device, and have the same checkpoints.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import AdamW, adamw

from echo_queue import config
from echo_queue.weights.host_memory import rooms_for
from learner.model.sharding import local

STEP, FIRST, SECOND = MOMENTS = "step", "exp_avg", "exp_avg_sq"
"""torch's names of a parameter's number of steps, and of the running means of its gradient and of the squares."""
AT_ONCE = 1 << 26
"""Elements of a parameter whose moments are on the GPU at a time: 512 MiB of both."""


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

    A step takes the moments of a part of a parameter to its device and back, 16 bytes a parameter over the link
    between them; one part after the other, so that the GPU has room for one alone. Moments hold this process's rows
    alone.
    """

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
        for master, group in stepping:
            self._step(master, group)
        for device in {master.device for master, _ in stepping if master.is_cuda}:
            torch.cuda.synchronize(device)

    def _step(self, master: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[master], master.grad
        assert gradient is not None
        written = [tensor.view(-1) for tensor in (local(master), state[FIRST], state[SECOND])]
        flat = [local(gradient).reshape(-1), *written]
        for slope, values, *kept in zip(*(tensor.split(AT_ONCE) for tensor in flat), strict=True):
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
        state[STEP].add_(1)


def _moments(master: Tensor, first: Tensor, second: Tensor) -> dict[str, Tensor]:
    return {STEP: torch.zeros((), dtype=torch.float32, device=master.device), FIRST: first, SECOND: second}
