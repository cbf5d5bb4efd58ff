"""A worker's host memory holds its model and one copy, however versions come."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from functools import cache
from pathlib import Path

import torch

from echo_queue.records import Version
from echo_queue.weights import Manifest, Route, delta
from echo_queue.weights.ciphers import cut
from echo_queue.weights.delta.codes import dtype_name
from echo_queue.weights.manifest import TensorInfo, root_digest, tensor_digest
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


@cache
def tensors_of(number):
    return {f"layers.{n:02}": tensor_of(n, number) for n in range(TENSORS)}


def tensor_of(n, number):
    generator = torch.Generator().manual_seed(n)
    tensor = torch.randn(ROWS, COLUMNS, generator=generator).bfloat16()
    for drift in range(number):
        tensor.view(torch.int16).view(-1)[drift :: 40] += 1
    return tensor


def publish(folder, number, base):
    version, pieces, parts = Version(1, number), {}, []
    start = None if base is None else base.version
    for shard in delta.encode({} if base is None else tensors_of(number - 1), tensors_of(number)):
        for piece in shard.pieces:
            pieces.setdefault(piece.names[0], []).append(piece.digest)
        part, data = cut(version, start, shard.data, 1 << 18, None)
        (folder / f"{number}-{len(parts)}").write_bytes(data)
        parts.append(part)
    infos = tuple(
        TensorInfo(name, dtype_name(one), tuple(one.shape), tensor_digest(pieces[name]))
        for name, one in tensors_of(number).items()
    )
    root = root_digest(infos, {})
    route = Route("run", version, start, root, None if base is None else base.root, tuple(parts))
    manifest = Manifest("run", version, infos, {}, root, route)
    (folder / f"{number}").write_bytes(manifest.encode())
    return manifest


def stage(folder, versions):
    stage, before = Stage(), resident()
    for number in range(versions):
        manifest = Manifest.decode((folder / f"{number}").read_bytes(), "test")
        parts = {part.key: OnDisk(folder / f"{number}-{i}") for i, part in enumerate(manifest.route.parts)}
        stage.apply((manifest.route,), manifest, parts, None)
    print((resident() - before) / SIZE)


def resident():
    words = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(words["VmHWM"].split()[0]) * 1024


torch.set_num_threads(1)
folder, versions = Path(sys.argv[2]), 2
if sys.argv[1] == "publish":
    base = None
    for number in range(versions):
        base = publish(folder, number, base)
else:
    stage(folder, versions)
"""


@pytest.mark.slow
def test_one_copy_and_a_part_are_all_that_versions_take(tmp_path: Path) -> None:
    printed = ""
    for step in ("publish", "stage"):
        command = [sys.executable, "-c", PROGRAM, step, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    copies = float(printed)
    assert 0.9 < copies < 1.6, f"{copies:.2f} times the model; the largest part is a quarter of it"
