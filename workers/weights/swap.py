"""The swap between two versions: generation pauses, the engine loads the staged weights, and is probed.

- After a `ConfigError` nothing has changed, and the old version goes on serving. Any other error is a `FailedSwap`: the
  engine may hold parts of both versions, and must not generate until weights have been loaded again from an anchor.
- The probe asks the engine, not the stage, whether it holds tensors with the digests that the learner signed: the
  first, the last, and some that differ from version to version.
"""

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from blake3 import blake3

from echo_queue import failpoints
from echo_queue.errors import ConfigError, EchoQueueError, Problem
from echo_queue.records import Version
from echo_queue.weights.manifest import Manifest, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

log = logging.getLogger(__name__)

FEW = 3
"""The number of tensors that are probed beside the first and the last."""
FIX = "the machine's memory or its accelerator may be broken: take the worker elsewhere"


class FailedSwap(EchoQueueError):
    """The engine holds neither the old nor the new version for certain."""


class Loads(Protocol):
    """The members of an engine that a swap uses."""

    def load(self, version: Version, tensors: "Mapping[str, Tensor]") -> None: ...
    def holds(self, info: TensorInfo) -> bool: ...


class WeightSwap:
    """Swaps the weights of one engine, in the caller's thread."""

    def __init__(self, engine: Loads) -> None:
        self.engine = engine
        self.pause_s = 0.0
        """The seconds for which generation paused at the last swap."""

    def swap(self, manifest: Manifest, tensors: "Mapping[str, Tensor]") -> None:
        """Loads `tensors`, the weights of the manifest's version, and probes. Raises `ConfigError` or `FailedSwap`."""
        version, began = manifest.version, time.monotonic()
        try:
            failpoints.step("load weights", lambda: self.engine.load(version, tensors), version)
            failpoints.step("probe weights", lambda: self._probe(manifest), version)
        except ConfigError:
            raise
        except EchoQueueError as error:
            raise FailedSwap(*error.problems) from error
        except Exception as error:
            raise FailedSwap(Problem(f"weights {version}", f"could not be loaded: {error!r}", FIX)) from error
        finally:
            self.pause_s = time.monotonic() - began

    def _probe(self, manifest: Manifest) -> None:
        infos = probed(manifest)
        with ThreadPoolExecutor(os.cpu_count(), "probing") as pool:
            for info, held in zip(infos, pool.map(self.engine.holds, infos), strict=True):
                if not held:
                    what = f"{info.name} in the engine is not what was published"
                    raise FailedSwap(Problem(f"weights {manifest.version}", what, FIX))


def probed(manifest: Manifest) -> list[TensorInfo]:
    """Returns the first and the last tensor, and up to `FEW` of the others, different ones for each version."""
    tensors = manifest.tensors
    if len(tensors) <= FEW + 2:
        return list(tensors)
    others = sorted(tensors[1:-1], key=lambda info: blake3(f"{manifest.version} {info.name}".encode()).digest())
    return [tensors[0], *others[:FEW], tensors[-1]]
