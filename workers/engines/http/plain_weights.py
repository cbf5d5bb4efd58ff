"""Extends a vLLM server on CPUs, as `--worker-extension-cls workers.engines.http.plain_weights.PlainWeights`.

On CPUs, vLLM packs the weights of linear layers: its checksums do not see them, and a tied output layer is not packed
again when weights are reloaded. A server that imports this module before it builds the model keeps the weights as the
checkpoint has them. Unlike the engine in this process (`vllm.setup`), it keeps their order in memory too, since
reloading replaces them.
"""

from typing import Any

from torch.nn.functional import linear
from vllm.model_executor.layers import utils


def keep(layer: Any, remove_weight: bool) -> None:
    """Replaces vLLM's function that packs a layer's weight."""
    layer.cpu_linear = linear


utils.dispatch_cpu_unquantized_gemm = keep


class PlainWeights:
    """Adds nothing to the server's workers; importing its module is the effect."""
