"""Masters in float32 and computation in bfloat16, by FSDP2 (`torch.distributed.fsdp.fully_shard`).

The parameters themselves are the masters, and the optimizer steps in them. A layer's bfloat16 weights exist only around
its own forward and backward pass; its gradient is added up in float32. A process alone forms a group of one.
"""

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


def shard(root: torch.nn.Module, layers: torch.nn.ModuleList, dtype: torch.dtype, device: torch.device) -> None:
    """Makes `root` compute in `dtype`, layer by layer, while its parameters stay in float32."""
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(root, mesh=mesh, mp_policy=policy)


def local(tensor: Tensor) -> Tensor:
    """Returns this process's part of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Returns a sharded tensor put together from all processes; any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed_like(part: Tensor, sharded: Tensor) -> Tensor:
    """Returns this process's `part` as a tensor that is placed as `sharded` is."""
    part = part.to(sharded.device)
    if not isinstance(sharded, DTensor) or part.ndim == 0:
        return part
    return DTensor.from_local(part, sharded.device_mesh, sharded.placements)
