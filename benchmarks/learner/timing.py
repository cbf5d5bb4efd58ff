"""Seconds of work on a device, with all of its kernels or without them."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds until the work and all of its kernels have ended."""
    return timed_result(work)[0]


def timed_result(work: Callable[[], T]) -> tuple[float, T]:
    """Does what `timed` does, and returns the work's result as well."""
    synchronise()
    began = time.perf_counter()
    result = work()
    synchronise()
    return time.perf_counter() - began, result


def held_up(work: Callable[[], object]) -> float:
    """Returns the seconds for which the work holds this thread up; the kernels that it began may go on."""
    synchronise()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
