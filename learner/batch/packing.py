"""The tokens of a micro-batch lie packed in one sequence, without padding; attention knows the prompt of each."""

from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Returns what each query attended to, [L, H, D]; query [L, H, D], key and value [L, H_kv, D]."""


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on `device`; from pinned memory, so that the copy to a GPU does not wait for its kernels."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
