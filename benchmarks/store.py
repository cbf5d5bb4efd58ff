"""The speed of the embedded store: start-up, MB/s of puts, gets and ranged reads; and the cost of publishing weights.

- The baseline of publishing is two bare puts, of a snapshot's bytes and of a small manifest, by the same client. The
  ratio shows what casting, digests and checking add.
- Making the parts of a delta, of which 2 % of the bfloat16 elements have changed, is timed with one thread that codes
  pieces and with one for each core; the parts are stored as well.
- Rounds are interleaved; figures are medians.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.verdict import print_verdict
from echo_queue import weights
from echo_queue.config import Weights
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.records import Published, Version
from echo_queue.weights.layout import Share
from echo_queue.weights.part_makers import PartMaker, RouteOrder

MB = 1e6
RANGE_BYTES = 16 << 20
STREAMS = 8
MANIFEST_BYTES, CHANGED = 5_000, 0.02
TARGET_START_S, TARGET_RANGED_MB_S = 5.0, 400.0


@dataclass(frozen=True)
class Figures:
    start_s: float
    put_mb_s: float
    get_mb_s: float
    ranged_mb_s: float
    put_4k_per_s: float
    get_4k_per_s: float
    snapshot_mb: float
    publish_ms: float
    bare_puts_ms: float
    publish_ratio: float
    fetch_ms: float
    delta_mb: float
    delta_ms: float
    threads: int
    delta_threads_ms: float
    threads_ratio: float


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(server: S3Server, megabytes: int, rounds: int) -> Figures:
    start_s = seconds(server.start)
    store = ObjectStore(server.endpoint("benchmark"), "run")
    store.create_bucket()
    size, big = megabytes << 20, os.urandom(megabytes << 20)
    put_s = statistics.median(seconds(lambda: store.put("big", big)) for _ in range(rounds))
    get_s = statistics.median(seconds(lambda: store.get("big")) for _ in range(rounds))
    ranged_s = statistics.median(seconds(lambda: read_in_ranges(store, "big", size)) for _ in range(rounds))
    small = os.urandom(4096)
    small_put_s = seconds(lambda: [store.put(f"small/{number}", small) for number in range(200)]) / 200
    small_get_s = seconds(lambda: [store.get(f"small/{number}") for number in range(200)]) / 200
    return Figures(
        start_s, size / MB / put_s, size / MB / get_s, size / MB / ranged_s, 1 / small_put_s, 1 / small_get_s,
        *publishing(store, 10 * rounds), *coding(store, rounds),
    )  # fmt: skip


def read_in_ranges(store: ObjectStore, key: str, size: int) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        starts = range(0, size, RANGE_BYTES)
        list(pool.map(lambda start: store.get_range(key, start, min(RANGE_BYTES, size - start)), starts))


def publishing(store: ObjectStore, rounds: int) -> tuple[float, float, float, float, float]:
    """Returns MB of a toy model in float32, ms to publish it, ms of two bare puts, their ratio, and ms to fetch it."""
    model = {f"layers.{number}.weight": torch.randn(128, 256) for number in range(18)}
    snapshot = os.urandom(sum(tensor.nbytes for tensor in model.values()))
    manifest = os.urandom(MANIFEST_BYTES)
    published: list[Published] = []
    signer = weights.Signer.generate()
    verifier = weights.SignatureVerifier(signer.public_key)

    def publish(number: int) -> None:
        weight_publisher = weights.WeightPublisher(store, "run", signer, Weights())  # a new one publishes everything
        published.append(weight_publisher.publish(Version(0, number), model, "float32"))

    def bare(number: int) -> None:
        store.put(f"bare/{number}/snapshot", snapshot)
        store.put(f"bare/{number}/manifest", manifest, once=True)

    publish_s, bare_s, fetch_s = [], [], []
    for number in range(rounds):
        bare_s.append(seconds(lambda number=number: bare(number)))  # type: ignore[misc]
        publish_s.append(seconds(lambda number=number: publish(number)))  # type: ignore[misc]
        fetch_s.append(seconds(lambda: weights.fetch(store, published[-1], verifier)))
    ours, baseline, fetch = (1e3 * statistics.median(times) for times in (publish_s, bare_s, fetch_s))
    return len(snapshot) / MB, ours, baseline, ours / baseline, fetch


def coding(store: ObjectStore, rounds: int) -> tuple[float, float, int, float, float]:
    """Returns MB of a bfloat16 model; ms to make its delta's parts with one thread; the number of cores; ms with as
    many threads; and how many times as fast that is."""
    versions = [{f"layers.{number}.weight": torch.randn(1 << 22).bfloat16() for number in range(16)}]
    versions.append({name: _moved(tensor) for name, tensor in versions[0].items()})
    shares = [Share.whole(tensors, "bfloat16", Weights().part_bytes) for tensors in versions]
    cores, times = len(os.sched_getaffinity(0)), dict[int, list[float]]()
    for number in range(rounds + 1):
        for threads in dict.fromkeys((1, cores)):
            maker, version = PartMaker(store, Weights(), threads=threads), Version(number, threads)
            maker.take(shares[0])
            maker.keep(0)
            maker.take(shares[1])
            order = RouteOrder(version._replace(number=threads + 1), version, 1)
            taken_s = seconds(lambda maker=maker, order=order: list(maker.make(order)))  # type: ignore[misc]
            if number:  # the first round compiles
                times.setdefault(threads, []).append(taken_s)
    alone, together = (1e3 * statistics.median(times[threads]) for threads in (1, cores))
    return shares[0].layout.nbytes / MB, alone, cores, together, alone / together


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with 2 % of its codes moved by one."""
    codes = tensor.view(torch.int16)
    return (codes + (torch.rand(len(codes)) < CHANGED)).to(torch.int16).view(torch.bfloat16)


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the large object, MiB")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        server = S3Server(Path(directory), StoreKeys("BENCHMARKBENCHMARKBE", "benchmark"))
        try:
            figures = measure(server, args.megabytes, args.rounds)
        finally:
            server.stop()
    targets = {
        f"starts within {TARGET_START_S:.0f} s": figures.start_s < TARGET_START_S,
        f"ranged reads above {TARGET_RANGED_MB_S:.0f} MB/s": figures.ranged_mb_s > TARGET_RANGED_MB_S,
    }
    if args.json:
        print_verdict(figures, targets)
    else:
        print(
            f"rclone serve s3, {args.megabytes} MiB object, {STREAMS} streams of {RANGE_BYTES >> 20} MiB ranges\n"
            f"  start         {figures.start_s:8.2f} s      (target < {TARGET_START_S:.0f})\n"
            f"  put           {figures.put_mb_s:8.0f} MB/s\n"
            f"  get           {figures.get_mb_s:8.0f} MB/s\n"
            f"  ranged        {figures.ranged_mb_s:8.0f} MB/s   (target > {TARGET_RANGED_MB_S:.0f})\n"
            f"  put/get 4 KiB {figures.put_4k_per_s:8.0f} / {figures.get_4k_per_s:.0f} per second\n"
            f"  publish       {figures.publish_ms:8.1f} ms of {figures.snapshot_mb:.1f} MB; two bare puts "
            f"{figures.bare_puts_ms:.1f} ms; ratio {figures.publish_ratio:.2f}\n"
            f"  fetch         {figures.fetch_ms:8.1f} ms, verified\n"
            f"  make a delta  {figures.delta_ms:8.1f} ms of {figures.delta_mb:.0f} MB with one thread; with "
            f"{figures.threads} threads {figures.delta_threads_ms:.1f} ms; {figures.threads_ratio:.2f} times as fast"
        )
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
