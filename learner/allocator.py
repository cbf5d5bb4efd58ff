"""The settings of torch's allocator for GPUs, which torch reads as it is imported. This module needs no torch."""

from collections.abc import MutableMapping

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variable, and its older name, which torch heeds too."""


def grow_segments(environ: MutableMapping[str, str]) -> None:
    """Lets the allocator's segments grow, unless the user has settings of their own.

    Micro-batches differ in length, so that segments of fixed sizes leave holes on a GPU that is nearly full.
    """
    if not any(name in environ for name in NAMES):
        environ[NAMES[0]] = "expandable_segments:True"
