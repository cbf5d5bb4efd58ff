"""The devices that are known by name, with their peak rate and memory, and which of them the learner would take here.

Rates are dense: vendors' data sheets also print twice as much, for sparse matrices.
"""

import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem

MIB = 1 << 20
MARGIN = 0.05
"""The share of a GPU's memory that an estimate leaves free, for what its formulas miss. It is chosen, not measured:
docs/estimate.md, "How near it is", has what CPUs and a GPU say of the formulas."""


@dataclass(frozen=True)
class Device:
    """`flops`: the peak in operations a second. `memory`: bytes; 0 if the machine's memory is the bound."""

    name: str
    flops: float
    memory: int = 0

    @property
    def usable(self) -> int:
        """Returns the bytes that an estimate may fill."""
        return usable(self.memory)


def usable(memory: int) -> int:
    """Returns the bytes of a GPU that an estimate may fill: all of its memory but `MARGIN`."""
    return round(memory * (1 - MARGIN))


DEVICES: Mapping[str, Device] = {
    "h200": Device("NVIDIA H200 SXM", 989e12, 143_771 * MIB),
    "h100": Device("NVIDIA H100 SXM", 989e12, 81_559 * MIB),
    "a100": Device("NVIDIA A100 SXM 80 GB", 312e12, 81_920 * MIB),
    "l40s": Device("NVIDIA L40S", 362e12, 46_068 * MIB),
    "4090": Device("NVIDIA RTX 4090", 165e12, 24_564 * MIB),
}
"""Peak rates of bfloat16 with float32 sums (data sheets; the Ada GPU architecture white paper for the last), and the
memory that nvidia-smi prints."""
CPU = "cpu"
CPUINFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""How Linux names a processor's arithmetic of bfloat16: two extensions of x86-64, and one of Arm."""
CPU_THREAD_FLOPS = 80e9
"""What is assumed of a thread where none is measured: two units for AVX2's fused multiply-add, 2 × 8 × 2 float32
operations a cycle, at 2.5 GHz."""
CPU_MFU = 0.7
"""The share of the rate of large float32 products that training reaches on a CPU: 0.6 to 0.9 with 400 tokens of a model
of 135 million parameters on two threads."""
MEASURED_ROWS, MEASURED_S = 256, 0.3
DEFAULT_GPU = "h100"
DEFAULT_MFU = 0.35
"""The share of the peak that training reaches. torchtitan's Llama 3.1 8B on 8 H100 reaches 0.33 without and 0.39 with
torch.compile (torchtitan, benchmarks/llama3_h100_202412_torchtitan.md)."""


def device(name: str, threads: int, thread_flops: float = CPU_THREAD_FLOPS) -> Device:
    """Returns the device of that name; "cpu" is `threads` threads of `thread_flops`.

    Raises `ConfigError` for a name that is unknown.
    """
    if name == CPU:
        return Device(f"{threads} CPU thread{'s' if threads > 1 else ''}", threads * thread_flops)
    if name not in DEVICES:
        fix = f"name one of {', '.join([*DEVICES, CPU])}"
        raise ConfigError(Problem("--device", f"{name} is not a device that is known", fix))
    return DEVICES[name]


def measured_thread_flops() -> float:
    """Returns the float32 operations a second of one of this machine's threads, from a few products of matrices.

    All threads multiply at once, as in training. The fastest of many small products counts: other processes slow down
    some of them, but hardly all. It takes `MEASURED_S`.
    """
    matrix, fastest_s = np.ones((MEASURED_ROWS, MEASURED_ROWS), dtype=np.float32), math.inf
    began = ended = time.perf_counter()
    while ended - began < MEASURED_S:
        before = ended
        matrix @ matrix
        ended = time.perf_counter()
        fastest_s = min(fastest_s, ended - before)
    return 2 * MEASURED_ROWS**3 / fastest_s / len(os.sched_getaffinity(0))


def learner_is_on_cpu(config: Config, environ: Mapping[str, str] = os.environ, dev: Path = Path("/dev")) -> bool:
    """Returns whether a learner that is started on this machine would train on its CPU.

    Looks for the device files of NVIDIA's and AMD's drivers, so that torch need not be imported.
    """
    if config.learner.device != "auto":
        return config.learner.device == CPU
    hidden = environ.get("CUDA_VISIBLE_DEVICES", environ.get("HIP_VISIBLE_DEVICES"))
    return hidden in ("", "-1") or not (any(dev.glob("nvidia[0-9]*")) or (dev / "kfd").exists())


@cache
def cpu_has_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Returns whether this machine's processor multiplies matrices of bfloat16. Others compute in float32
    (`learner.model.float32_products`). Where Linux does not say, it is taken to be one of these."""
    if not cpuinfo.is_file():
        return False
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return bool(flags and BFLOAT16_FLAGS & set(flags[1].split()))
