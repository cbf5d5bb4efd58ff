"""The tokens of a micro-batch lie packed in one sequence, without padding; attention knows the prompt of each."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Counts = npt.NDArray[np.int64]


class Lengths(NamedTuple):
    """The order of L packed tokens: N prompts, each without its last token, end to end; then R samples, end to end.

    A sample's inputs are its prompt's last token and its completion without the last.
    """

    prompts: Counts
    """[N] shared tokens of each prompt; 0 for a prompt of one token"""
    samples: Counts
    """[R] tokens of each sample"""
    prompt_of: Counts
    """[R] the prompt of each sample, in ascending order"""


class LayerAttention(NamedTuple):
    """How one layer attends: softmax of scale · query · key over what is before, with what the fields add to it."""

    scale: float | None = None
    """None: 1 / √head_dim"""
    window: int | None = None
    """The most tokens that a query sees, the last of which is its own; None: all. They are counted in the sample's own
    sequence, prompt and completion, as transformers counts them (`masking_utils.sliding_window_overlay`)."""
    cap: float | None = None
    """The scores' soft cap: cap · tanh(score / cap) (Gemma 2, arXiv 2408.00118, §2)."""
    sinks: Tensor | None = None
    """[H] a score of each head that takes part in the softmax and has no value (gpt-oss, arXiv 2508.10925, §2)."""


class Packing(Protocol):
    """Attention over the packed tokens of one micro-batch: each prompt is computed once for all of its samples.

    A prompt's token attends to the prompt up to itself; a sample's token to its prompt and to the sample up to itself.
    """

    @staticmethod
    def size(lengths: Lengths) -> int:
        """Returns the tokens of the micro-batch as this kind of attention pays for them, with its padding if any."""

    @classmethod
    def of(cls, lengths: Lengths) -> Self:
        """Builds the indices, on the CPU."""

    def to(self, device: torch.device) -> Self:
        """Copies the indices to `device`."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        """Returns what each query attended to, [L, H, D]; query [L, H, D], key and value [L, H_kv, D]."""


def moved_tensors(instance: "DataclassInstance", device: torch.device) -> dict[str, Any]:
    """Returns copies on `device` of the fields of a dataclass that are tensors, by name.

    The copies are made from pinned memory, so that those to a GPU do not wait for its kernels.
    """
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    return {name: _moved(value, device) for name, value in values.items() if isinstance(value, Tensor)}


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)
