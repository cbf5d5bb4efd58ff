"""Saving and loading a large state: seconds and peak memory, against one bytes object and one put of it all.

The baseline is what format 2 of the checkpoint did: safetensors makes the bytes, one thread hashes them, one PutObject
carries them (Amazon S3 takes 5 GB at most), and a load reads them all before it copies any tensor. Each part runs in a
process of its own, against rclone on this machine's disk. Memory is the peak of resident bytes above what stood before
the part began: above the state for a save, above the tensors to be filled for a load.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from blake3 import blake3

from benchmarks.verdict import conclude
from echo_queue.connections.secrets import StoreKeys
from echo_queue.services.s3_server import S3Server
from echo_queue.storage.endpoint import StoreEndpoint
from echo_queue.storage.object_store import ObjectStore
from learner.recovery.state_files import FILE_BYTES, THREADS, StateFile, whole, write_files
from learner.recovery.state_reader import read_whole

MB, GB = 1e6, 1e9
PREFIX, BLOB = "checkpoints/files/", "checkpoints/blob"
SLACK_BYTES = 64 << 20
"""What interpreter, client and threads take besides the files under way."""
ROW = 4096
PROCESSES = multiprocessing.get_context("spawn")
DEADLINE_S = 600.0

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Measured:
    """Seconds that a part took, and the bytes that it took at its peak besides the state."""

    seconds: float
    extra_bytes: int


@dataclass(frozen=True)
class Figures:
    gigabytes: float
    save_s: float
    baseline_save_s: float
    save_ratio: float
    save_mb: float
    baseline_save_mb: float
    load_s: float
    baseline_load_s: float
    load_ratio: float
    load_mb: float
    baseline_load_mb: float


class Ours:
    """The state in files of bounded size."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.files: tuple[StateFile, ...] = ()

    def save(self, store: ObjectStore, tensors: Tensors) -> None:
        self.files = write_files(store, PREFIX, whole(tensors), self.file_bytes)

    def load(self, store: ObjectStore, tensors: Tensors) -> None:
        read_whole(store, PREFIX, self.files, tensors)


class Baseline:
    """The state as one object."""

    digest = ""

    def save(self, store: ObjectStore, tensors: Tensors) -> None:
        data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
        self.digest = blake3(data).hexdigest()
        store.put(BLOB, data, once=True)  # what is put once is a single put

    def load(self, store: ObjectStore, tensors: Tensors) -> None:
        data = store.get(BLOB)
        if blake3(data).hexdigest() != self.digest:
            raise ValueError("the digest does not match")
        for name, tensor in safetensors.torch.load(data).items():
            tensors[name].copy_(tensor)


Way = Ours | Baseline


def state(gigabytes: float) -> Tensors:
    """Returns tensors of a model's sizes, the largest of a third of the state."""
    rows = int(gigabytes * GB / 4 / ROW)
    sizes = [rows // 3, *[rows // 12] * 8]
    draw = torch.Generator().manual_seed(1)
    return {f"master/{place}": torch.rand(size, ROW, generator=draw) for place, size in enumerate(sizes)}


def measured(way: Way, endpoint: StoreEndpoint, gigabytes: float, *, load: bool) -> tuple[Measured, Way]:
    """Saves or loads a state in a process of its own; what was loaded is compared. Returns `way` as it ended."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_measure, args=(theirs.send, way, endpoint, gigabytes, load), daemon=True)
    process.start()
    theirs.close()
    if not ours.poll(DEADLINE_S):
        raise TimeoutError(f"no answer within {DEADLINE_S:.0f} s")
    found: tuple[Measured, Way] = ours.recv()
    process.join()
    return found


def _measure(
    answer: Callable[[tuple[Measured, Way]], None], way: Way, endpoint: StoreEndpoint, gigabytes: float, load: bool
) -> None:
    torch.set_num_threads(1)
    store = ObjectStore(endpoint, "benchmark", DEADLINE_S)
    store.check()
    tensors = state(gigabytes)
    if load:
        tensors = {name: torch.zeros_like(tensor).fill_(-1.0) for name, tensor in tensors.items()}
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, began = _resident("VmRSS"), time.perf_counter()
    way.load(store, tensors) if load else way.save(store, tensors)
    seconds, peak = time.perf_counter() - began, _resident("VmHWM")
    if load and not all(torch.equal(tensors[name], tensor) for name, tensor in state(gigabytes).items()):
        raise ValueError("the state came back otherwise")
    answer((Measured(seconds, peak - before), way))


def _resident(what: str) -> int:
    """Returns bytes: `VmRSS` for now, `VmHWM` for the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def measure(endpoint: StoreEndpoint, gigabytes: float, file_bytes: int) -> Figures:
    saved, ours = measured(Ours(file_bytes), endpoint, gigabytes, load=False)
    baseline_saved, baseline = measured(Baseline(), endpoint, gigabytes, load=False)
    loaded, _ = measured(ours, endpoint, gigabytes, load=True)
    baseline_loaded, _ = measured(baseline, endpoint, gigabytes, load=True)
    return Figures(
        gigabytes=gigabytes,
        save_s=saved.seconds,
        baseline_save_s=baseline_saved.seconds,
        save_ratio=saved.seconds / baseline_saved.seconds,
        save_mb=saved.extra_bytes / MB,
        baseline_save_mb=baseline_saved.extra_bytes / MB,
        load_s=loaded.seconds,
        baseline_load_s=baseline_loaded.seconds,
        load_ratio=loaded.seconds / baseline_loaded.seconds,
        load_mb=loaded.extra_bytes / MB,
        baseline_load_mb=baseline_loaded.extra_bytes / MB,
    )


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the state")
    parser.add_argument("--file-mib", type=int, default=FILE_BYTES >> 20, help="largest size of a file, MiB")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = S3Server(Path(directory), StoreKeys("BENCHMARKBENCHMARKBE", "benchmark"))
        server.start()
        try:
            endpoint = replace(server.endpoint("benchmark"), put_once=True)
            ObjectStore(endpoint, "benchmark").create_bucket()
            figures = measure(endpoint, args.gigabytes, args.file_mib << 20)
        finally:
            server.stop()
    bound_mb = (THREADS * (args.file_mib << 20) + SLACK_BYTES) / MB
    print(f"{args.gigabytes:g} GB in files of {args.file_mib} MiB, {THREADS} at a time; baseline: one object, one put")
    for part in ("save", "load"):
        row = {name: getattr(figures, f"{name}") for name in (f"{part}_s", f"baseline_{part}_s", f"{part}_ratio")}
        ours_mb, baseline_mb = getattr(figures, f"{part}_mb"), getattr(figures, f"baseline_{part}_mb")
        seconds, baseline_s, ratio = row.values()
        print(f"  {part}  {seconds:6.1f} s, +{ours_mb:.0f} MB; baseline {baseline_s:6.1f} s, +{baseline_mb:.0f} MB; "
              f"ratio of seconds {ratio:.2f}")  # fmt: skip
    targets = {
        f"a save takes at most {bound_mb:.0f} MB besides the state": figures.save_mb <= bound_mb,
        f"a load takes at most {bound_mb:.0f} MB besides the tensors": figures.load_mb <= bound_mb,
        "a save is no slower than one put": figures.save_ratio <= 1.0,
    }
    return conclude(figures, targets, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
