"""One model in the memory of several processes, by FSDP2 (`torch.distributed.fsdp.fully_shard`).

- Each rank holds its rows of every parameter, of its gradient and of the optimizer's moments. A layer is whole only
  around its own forward and backward pass.
- The parameters are the masters, and the optimizer steps in them. If the model computes in another type, a layer's
  weights in that type exist as long as the layer is whole; gradients are added up in the masters' type.
"""

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Module, ModuleList

from learner.model.scorer import Scorer


def shard(root: Module, layers: ModuleList, dtype: torch.dtype, device: torch.device, *, trained: bool = True) -> None:
    """Spreads the rows of all parameters over all ranks, and makes `root` compute in `dtype`, layer by layer.

    A process alone forms a group of one. A model that is not `trained` gives up its embeddings and its head after the
    forward pass; one that is needs them again at once.
    """
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    # The group itself: a mesh of torch's own making may have another, with another deadline.
    group = distributed.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, device.type)
    masters = next((one.dtype for one in root.parameters() if one.requires_grad), dtype)
    # Inputs stay as they are: hidden states have `dtype` from the embedding on, and OLMo's rotations are in float32.
    policy = MixedPrecisionPolicy(dtype if dtype != masters else None, masters, cast_forward_inputs=False)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(root, mesh=mesh, mp_policy=policy, reshard_after_forward=not trained)


def materialise(scorer: Scorer, device: torch.device) -> None:
    """Gives a model on the meta device memory on `device`, without values: to each rank, for its rows."""
    scorer.to_empty(device=device)
    scorer.model.tie_weights()


def local(tensor: Tensor) -> Tensor:
    """Returns this process's rows of a sharded tensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_row(tensor: Tensor) -> int:
    """Returns the number of the first of this process's rows: FSDP gives all ranks but the last equally many."""
    if not isinstance(tensor, DTensor):
        return 0
    rows = -(-len(tensor) // tensor.device_mesh.size())
    return min(tensor.device_mesh.get_local_rank() * rows, len(tensor))


def rounded_type(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which a tensor is published: `dtype`, unless it holds no floating numbers."""
    return dtype if tensor.is_floating_point() else tensor.dtype


def whole(tensor: Tensor) -> Tensor:
    """Returns a sharded tensor put together from all processes, which all must call this; any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
