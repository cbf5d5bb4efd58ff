from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from echo_queue.weights.delta import Settings, encode, rans
from tests.weights.vector.departures import DEPARTURES

FOLDER = Path(__file__).parent
TYPES = {1: "uint8", 2: "bfloat16", 4: "float32"}
HOW = Settings(piece_bytes=24_576, shard_bytes=40_000, classes_below=1)
RUN = 512
"""Changes for each pair of tables: fewer than usual, so that a small piece has several."""
TIED = {"head": "embedding"}


def versions() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Pieces of every kind and width of symbols, and of classes for every width of codes."""
    random = np.random.default_rng(4)
    base: dict[str, Tensor] = {"empty": torch.empty(0, 3), "scalar": torch.tensor(-0.0)}
    new: dict[str, Tensor] = {"empty": torch.empty(0, 3), "scalar": torch.tensor(float("nan"))}

    def add(name: str, width: int, size: int, share: float, reach: int) -> None:
        old = random.normal(0, 0.02, size).astype(np.float32).view(np.uint32) >> (32 - 8 * width)
        step = random.integers(-reach, reach, size, endpoint=True)
        codes = old.astype(f"u{width}"), (old + np.where(random.random(size) < share, step, 0)).astype(f"u{width}")
        kind: torch.dtype = getattr(torch, TYPES[width])
        base[name], new[name] = (torch.from_numpy(part.view(np.uint8)).view(kind).clone() for part in codes)

    def add_by_exponent(name: str, width: int, size: int, least: float) -> None:
        """Small numbers change more often, as in an update."""
        old = random.normal(0, 0.02, size).astype(np.float32).view(np.uint32) >> (32 - 8 * width)
        key = (old >> (8 * width - 9)) & 255 if width > 1 else old & 127
        share = np.minimum(0.9, least * 2.0 ** (key.max() - key.astype(int)))
        step = np.where(random.random(size) < share, random.choice([1, -1, 2, 70], size), 0)
        kind: torch.dtype = getattr(torch, TYPES[width])
        for tensors, codes in ((base, old), (new, old + step)):
            tensors[name] = torch.from_numpy(codes.astype(f"u{width}").view(np.uint8)).view(kind).clone()

    add_by_exponent("embedding", 2, 12_288 + 1205, 0.02)
    add_by_exponent("eighths", 1, 9000, 0.05)
    add_by_exponent("quarters", 4, 6001, 0.02)
    add("rare", 2, 1003, 0.002, 200)
    add("bytes", 1, 203, 0.05, 9)
    add("floats", 4, 301, 0.03, 1)
    add("often", 2, 603, 0.2, 3)
    add("far", 2, 603, 0.2, 600)
    add("most", 2, 303, 0.9, 3)
    add("all", 4, 303, 1, 20_000)
    add("other", 4, 130, 1, 2**31 - 1)
    add("unchanged", 2, 100, 0, 1)
    new["reshaped"], base["reshaped"] = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)
    return base, new


def write() -> None:
    rans.RUN = RUN
    base, new = versions()
    save_file(base, FOLDER / "base.safetensors")
    save_file(new, FOLDER / "new.safetensors")
    for name, old in (("delta", base), ("anchor", {})):
        for number, shard in enumerate(encode(old, new, TIED, HOW)):
            (FOLDER / f"{name}-{number}.shard").write_bytes(shard.data)
    for what, data in DEPARTURES.items():
        (FOLDER / "refused" / f"{what}.shard").write_bytes(data)


if __name__ == "__main__":
    write()
