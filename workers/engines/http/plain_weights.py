"""For a vLLM server on CPUs, as `--worker-extension-cls workers.engines.http.plain_weights.PlainWeights`.

vLLM packs the weights of linear layers away on CPUs: its checksums do not see them, and a tied output layer is not
packed again when weights are reloaded. A server that imports this module before it builds the model keeps them as the
checkpoint has them: also in their order in memory, other than the engine in process (`vllm.opening`), since reloading
puts new ones in their place.
"""

from typing import Any

from torch.nn.functional import linear
from vllm.model_executor.layers import utils


def keep(layer: Any, remove_weight: bool) -> None:
    """In place of what packs a layer's weight."""
    layer.cpu_linear = linear


utils.dispatch_cpu_unquantized_gemm = keep


class PlainWeights:
    """Adds nothing to the server's workers: its module is what matters."""
