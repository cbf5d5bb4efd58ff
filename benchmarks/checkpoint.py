"""Saving and loading a large state: seconds and peak memory, against one bytes object and one put of it all.

The baseline is what format 2 of the checkpoint did: safetensors makes the bytes, one thread hashes them, one PutObject
carries them, and a load reads them all before it copies any tensor. Amazon S3 takes 5 GB at most in one put, so a
larger state has no baseline. Each part runs in a process of its own, against rclone on this machine's disk. Memory is
the peak of resident bytes above what stood before the part began: above the state for a save, above the tensors to be
filled for a load.

With `--ranks N` the same state is also saved and loaded by N processes, each with its share of the rows. Their figures
are those of the slowest rank, and of the one that takes the most memory.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import orjson
import safetensors.torch
import torch
from blake3 import blake3
from torch._C._distributed_c10d import TCPStore

from benchmarks.verdict import conclude
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.records import Version
from learner.model.pieces import Piece
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.recovery.manifest import History
from learner.recovery.state_files import FILE_BYTES, THREADS

MB, GB = 1e6, 1e9
RUN, BLOB = "benchmark", "one-object"
SLACK_BYTES = 64 << 20
"""The memory that interpreter, client and threads may take besides the files under way."""
ROW = 4096
MOST_IN_ONE_PUT_GB = 5.0
DEADLINE_S = 600.0
HOST = "127.0.0.1"

Pieces = Sequence[Piece]


@dataclass(frozen=True)
class Measured:
    """Seconds that a part took, and the bytes that it took at its peak besides the state."""

    seconds: float
    extra_bytes: int


@dataclass(frozen=True)
class Part:
    """One process's measurement: an action of `ACTIONS`, with its share of `gigabytes`, on the server at `url`.

    `port`: where the store of the ranks' messages listens.
    """

    action: str
    rank: int
    ranks: int
    port: int
    gigabytes: float
    file_bytes: int
    url: str
    bucket: str
    access_key: str
    secret_key: str


@dataclass(frozen=True)
class Baseline:
    """One object and one put of it all; `…_ratio`: our seconds by its seconds."""

    save_s: float
    save_ratio: float
    save_mb: float
    load_s: float
    load_ratio: float
    load_mb: float


@dataclass(frozen=True)
class Figures:
    gigabytes: float
    save_s: float
    save_mb: float
    load_s: float
    load_mb: float
    ranks: int
    ranks_save_s: float
    ranks_save_mb: float
    ranks_load_s: float
    ranks_load_mb: float
    baseline: Baseline | None


def save(store: ObjectStore, team: Team, pieces: Pieces, file_bytes: int) -> None:
    version = Version(1, team.size)
    checkpoint.write(store, team, version, pieces, file_bytes)
    if team.first:
        checkpoint.complete(store, team, version, History(), DEADLINE_S)


def load(store: ObjectStore, team: Team, pieces: Pieces, file_bytes: int) -> None:
    checkpoint.restore(store, team, lambda stored, read: read(pieces))


def save_as_one(store: ObjectStore, team: Team, pieces: Pieces, file_bytes: int) -> None:
    data = safetensors.torch.save({piece.name: piece.tensor for piece in pieces})
    store.put(f"{BLOB}.digest", blake3(data).hexdigest().encode())
    store.put(BLOB, data, once=True)  # what is put once is a single put


def load_as_one(store: ObjectStore, team: Team, pieces: Pieces, file_bytes: int) -> None:
    data = store.get(BLOB)
    if blake3(data).hexdigest().encode() != store.get(f"{BLOB}.digest"):
        raise ValueError("the digest does not match")
    loaded = safetensors.torch.load(data)
    for piece in pieces:
        piece.tensor.copy_(loaded[piece.name])


ACTIONS: Mapping[str, Callable[[ObjectStore, Team, Pieces, int], None]] = {
    "save": save,
    "load": load,
    "save as one": save_as_one,
    "load as one": load_as_one,
}


def state(gigabytes: float, rank: int, ranks: int) -> Iterator[Piece]:
    """Yields a rank's rows of tensors of a model's sizes, the largest of a third of the state."""
    rows = int(gigabytes * GB / 4 / ROW) // ranks
    sizes = [rows // 3, *[rows // 12] * 8]
    draw = torch.Generator().manual_seed(1 + rank)
    for place, size in enumerate(sizes):
        yield Piece(f"master/{place}", (size * ranks, ROW), size * rank, torch.rand(size, ROW, generator=draw))


def measured(action: str, endpoint: StoreEndpoint, gigabytes: float, file_bytes: int, ranks: int = 1) -> Measured:
    """Measures an action in processes of its own, which compare what they load with what was saved.

    Returns the most seconds and the most bytes of any of them.
    """
    keys = (endpoint.access_key or "", endpoint.secret_key or "")
    messages = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "benchmarks.checkpoint", "--part"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(ranks)]
    try:
        for rank, process in enumerate(processes):
            place = (rank, ranks, messages.port)
            part = Part(action, *place, gigabytes, file_bytes, endpoint.url, endpoint.bucket, *keys)
            assert process.stdin is not None
            process.stdin.write(orjson.dumps(asdict(part)))
            process.stdin.close()
            process.stdin = None
        found = [Measured(**orjson.loads(process.communicate(timeout=DEADLINE_S)[0])) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return Measured(max(each.seconds for each in found), max(each.extra_bytes for each in found))


def measure_here(part: Part) -> Measured:
    torch.set_num_threads(1)
    endpoint = StoreEndpoint(
        part.url, part.bucket, access_key=part.access_key, secret_key=part.secret_key, put_once=True
    )
    store = ObjectStore(endpoint, RUN, DEADLINE_S)
    store.check()
    team = _team(part)
    pieces = list(state(part.gigabytes, part.rank, part.ranks))
    if part.action.startswith("load"):
        for piece in pieces:
            piece.tensor.fill_(-1.0)
    _begin_together(team)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, began = _resident("VmRSS"), time.perf_counter()
    ACTIONS[part.action](store, team, pieces, part.file_bytes)
    found = Measured(time.perf_counter() - began, _resident("VmHWM") - before)
    expected = state(part.gigabytes, part.rank, part.ranks)
    if not all(torch.equal(piece.tensor, other.tensor) for piece, other in zip(pieces, expected, strict=True)):
        raise ValueError("the state came back otherwise")
    return found


def _team(part: Part) -> Team:
    if part.ranks == 1:
        return Team.alone()
    timeout = timedelta(seconds=DEADLINE_S)
    messages = TCPStore(HOST, part.port, is_master=False, timeout=timeout, wait_for_workers=False)
    return Team(part.rank, part.ranks, messages, deadline_s=DEADLINE_S, silence_s=DEADLINE_S)


def _begin_together(team: Team) -> None:
    """Returns once every rank has made its state."""
    team.report("ready", b"")
    team.share(lambda: b"".join(team.reports("ready", DEADLINE_S)))


def _resident(what: str) -> int:
    """Returns bytes: `VmRSS` for now, `VmHWM` for the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def measure(endpoint: StoreEndpoint, gigabytes: float, file_bytes: int, ranks: int) -> Figures:
    saved, loaded = (measured(action, endpoint, gigabytes, file_bytes) for action in ("save", "load"))
    ranks_saved, ranks_loaded = saved, loaded
    if ranks > 1:
        ranks_saved, ranks_loaded = (
            measured(action, endpoint, gigabytes, file_bytes, ranks) for action in ("save", "load")
        )
    return Figures(
        gigabytes=gigabytes,
        save_s=saved.seconds,
        save_mb=saved.extra_bytes / MB,
        load_s=loaded.seconds,
        load_mb=loaded.extra_bytes / MB,
        ranks=ranks,
        ranks_save_s=ranks_saved.seconds,
        ranks_save_mb=ranks_saved.extra_bytes / MB,
        ranks_load_s=ranks_loaded.seconds,
        ranks_load_mb=ranks_loaded.extra_bytes / MB,
        baseline=measure_baseline(endpoint, gigabytes, saved, loaded) if gigabytes <= MOST_IN_ONE_PUT_GB else None,
    )


def measure_baseline(endpoint: StoreEndpoint, gigabytes: float, saved: Measured, loaded: Measured) -> Baseline:
    save, load = (measured(action, endpoint, gigabytes, FILE_BYTES) for action in ("save as one", "load as one"))
    return Baseline(
        save_s=save.seconds,
        save_ratio=saved.seconds / save.seconds,
        save_mb=save.extra_bytes / MB,
        load_s=load.seconds,
        load_ratio=loaded.seconds / load.seconds,
        load_mb=load.extra_bytes / MB,
    )


def _print(figures: Figures) -> None:
    print(f"  save  {figures.save_s:6.1f} s and {figures.save_mb:5.0f} MB")
    print(f"  load  {figures.load_s:6.1f} s and {figures.load_mb:5.0f} MB")
    if figures.ranks > 1:
        print(
            f"  {figures.ranks} ranks  save {figures.ranks_save_s:6.1f} s and {figures.ranks_save_mb:5.0f} MB a rank; "
            f"load {figures.ranks_load_s:6.1f} s and {figures.ranks_load_mb:5.0f} MB a rank"
        )
    if (one := figures.baseline) is not None:
        print(f"  baseline, save {one.save_s:6.1f} s and {one.save_mb:5.0f} MB; ratio of seconds {one.save_ratio:.2f}")
        print(f"  baseline, load {one.load_s:6.1f} s and {one.load_mb:5.0f} MB; ratio of seconds {one.load_ratio:.2f}")


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the state")
    parser.add_argument("--file-mib", type=int, default=FILE_BYTES >> 20, help="largest size of a file, MiB")
    parser.add_argument("--ranks", type=int, default=1, help="number of processes that share the state")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(orjson.dumps(measure_here(Part(**orjson.loads(sys.stdin.buffer.read())))).decode())
        return 0
    with tempfile.TemporaryDirectory() as directory:
        server = S3Server(Path(directory), StoreKeys("BENCHMARKBENCHMARKBE", "benchmark"))
        server.start()
        try:
            endpoint = replace(server.endpoint("benchmark"), put_once=True)
            ObjectStore(endpoint, RUN).create_bucket()
            figures = measure(endpoint, args.gigabytes, args.file_mib << 20, args.ranks)
        finally:
            server.stop()
    bound_mb = (THREADS * (args.file_mib << 20) + SLACK_BYTES) / MB
    print(f"{args.gigabytes:g} GB in files of {args.file_mib} MiB, {THREADS} at a time; baseline: one object, one put")
    _print(figures)
    save_mb, load_mb = max(figures.save_mb, figures.ranks_save_mb), max(figures.load_mb, figures.ranks_load_mb)
    targets = {
        f"a save takes at most {bound_mb:.0f} MB besides the state": save_mb <= bound_mb,
        f"a load takes at most {bound_mb:.0f} MB besides the tensors": load_mb <= bound_mb,
    }
    if figures.baseline is not None:
        targets["a save is no slower than one put"] = figures.baseline.save_ratio <= 1.0
    return conclude(figures, targets, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
