"""A worker's host memory holds its model and one copy, however versions come."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, tempfile
from pathlib import Path

import torch

from echo_queue.config import Weights
from echo_queue.records import Version
from echo_queue.weights import Manifest, Route, delta
from echo_queue.weights.ciphers import cut
from echo_queue.weights.manifest import root_digest
from echo_queue.weights.tensors import described
from tests.workers.publications import Bytes
from workers.weights.staging import Stage

MIB = 1 << 20
ROWS, COLUMNS, TENSORS = 4096, 2048, 16
SIZE = ROWS * COLUMNS * TENSORS * 2


class OnDisk(Bytes):
    def __init__(self, path):
        self._path = path

    def memory(self):
        return memoryview(self._path.read_bytes())


class Made(dict):
    "Tensors that exist while they are looked at."

    def __init__(self, seed):
        super().__init__({f"layers.{n:02}": n for n in range(TENSORS)})
        self._seed = seed

    def __getitem__(self, name):
        generator = torch.Generator().manual_seed(super().__getitem__(name))
        tensor = torch.randn(ROWS, COLUMNS, generator=generator).bfloat16()
        for seed in range(self._seed):
            tensor.view(torch.int16).view(-1)[seed :: 40] += 1
        return tensor

    def get(self, name, default=None):
        return self[name] if name in self else default

    def items(self):
        return ((name, self[name]) for name in self)


def published(folder, number, base):
    version, pieces, parts, bytes_of = Version(1, number), {}, [], {}
    start = None if base is None else base.version
    for shard in delta.encode({} if base is None else Made(number - 1), Made(number)):
        for piece in shard.pieces:
            pieces.setdefault(piece.names[0], []).append(piece.digest)
        part, data = cut(version, start, shard.data, 1 << 18, None)
        path = folder / f"{number}-{len(parts)}"
        path.write_bytes(data)
        parts.append(part)
        bytes_of[part.key] = OnDisk(path)
    infos = described(Made(number), pieces)
    root = root_digest(infos, {})
    route = Route("run", version, start, root, None if base is None else base.root, tuple(parts))
    return Manifest("run", version, infos, {}, root, route), bytes_of


def resident():
    words = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(words["VmHWM"].split()[0]) * 1024


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as name:
    base, versions = None, []
    for number in range(3):
        base, parts = published(Path(name), number, base)
        versions.append((base, parts))
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    stage = Stage()
    for manifest, parts in versions:
        stage.apply((manifest.route,), manifest, parts, None)
    print((resident() - before) / SIZE)
"""


@pytest.mark.slow
def test_one_copy_and_a_part_are_all_that_versions_take() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    copies = float(done.stdout)
    assert 0.9 < copies < 1.6, f"{copies:.2f} times the model (a quarter of it is one part, and its pieces)"
