"""Judges whether a machine can be a worker: GPU and driver, disk, clock, and what can be reached from it and on it.

What is missing is yielded, so that all of it is said at once. `warnings` are about what slows a worker down.
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

from echo_queue.config import Config
from echo_queue.errors import Problem
from echo_queue.records.foreign_numbers import whole

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits")
ASK_S = 30.0
"""The deadline of nvidia-smi, which takes seconds where the driver is not loaded yet."""
CONNECT_S = 5.0
GREETING_S = 2.0
MIB, GB = 1 << 20, 1e9
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA's major version → the oldest driver that all of its minor versions run on (NVIDIA, CUDA Compatibility)."""
MOST_SKEW_MS = 30_000
"""Tokens between workers live a minute, and this much longer for clocks that differ."""


@dataclass(frozen=True)
class Gpu:
    index: str
    name: str
    memory_bytes: int
    driver: str


def gpus(program: Sequence[str] = NVIDIA_SMI) -> list[Gpu]:
    """Returns the GPUs that NVIDIA's driver shows; none where there is no driver, or it does not answer."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(program, capture_output=True, text=True, timeout=ASK_S, check=True)
        return gpus_of(done.stdout)
    return []


def gpus_of(listing: str) -> list[Gpu]:
    """Reads the lines of nvidia-smi, in MiB."""
    rows = [[word.strip() for word in line.split(",")] for line in listing.splitlines()]
    return [
        Gpu(index, name, int(memory) * MIB, driver)
        for index, name, memory, driver in (row for row in rows if len(row) == 4)
        if memory.isdecimal()
    ]


def torch_cuda() -> int:
    """Returns the major version of CUDA that torch was built for; 0 for a torch of the CPU alone, or none at all."""
    found = re.search(r"^cuda\b.*?['\"](\d+)", _torch_version(), re.MULTILINE)
    return int(found[1]) if found else 0


def torch_takes_gpus() -> bool:
    """Returns whether torch was built for GPUs, of either maker; True where there is no torch, which is told anyway."""
    text = _torch_version()
    return not text or re.search(r"^(cuda|hip)\b.*?['\"]\d", text, re.MULTILINE) is not None


def _torch_version() -> str:
    """Returns the text of torch's version, because importing torch takes seconds; empty where there is none."""
    spec = importlib.util.find_spec("torch")
    with suppress(OSError):
        return Path(spec.origin or "").with_name("version.py").read_text(encoding="utf-8") if spec else ""
    return ""


def devices(engine: str, found: Sequence[Gpu], cuda: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the GPUs on which workers of `engine` run here, one on each; none if they run on CPUs or ask a server.

    `found`: those of the machine; `cuda`: as `torch_cuda`. CUDA_VISIBLE_DEVICES says which of them are for the workers.
    """
    if engine == "http" or not cuda:
        return []
    given = environ.get("CUDA_VISIBLE_DEVICES", ",".join(gpu.index for gpu in found))
    return [word.strip() for word in given.split(",") if word.strip() not in ("", "-1")]


def named(found: Sequence[Gpu], devices: Sequence[str]) -> list[Gpu]:
    """Returns the GPUs that `devices` names; all of them if it names some in other words than by their numbers."""
    if not all(device.isdecimal() for device in devices):
        return list(found)
    return [gpu for gpu in found if gpu.index in devices]


def worker_problems(workers: int, devices: Sequence[str]) -> Iterator[Problem]:
    """Yields that more workers are asked for than there are `devices`, if they need any."""
    if workers > len(devices) > 0:
        what = f"is {workers}, and this machine has {len(devices)} GPUs for workers, of which each takes one"
        yield Problem("--workers", what, "leave it out for a worker on each GPU")


def gpu_problems(engine: str, found: Sequence[Gpu], cuda: int, model_bytes: int, share: float) -> Iterator[Problem]:
    """Yields why `engine` cannot run on these GPUs. `cuda`: as `torch_cuda`; a worker takes `share` of one GPU."""
    if engine == "http" or not cuda:
        return
    if not found and engine == "vllm":
        what = "vllm needs one from NVIDIA with its driver, and nvidia-smi shows none"
        yield Problem("GPU", what, "install the driver, start the container with its GPUs, or take another machine")
    for gpu in found:
        named = f"GPU {gpu.index}"
        least, major = LEAST_DRIVER.get(cuda, 0), gpu.driver.partition(".")[0]
        if major.isdecimal() and int(major) < least:
            what = f"{gpu.name} has driver {gpu.driver}, and torch was built for CUDA {cuda}, which needs {least}"
            yield Problem(named, what, "install a newer driver, or a torch for an older CUDA")
        if model_bytes > share * gpu.memory_bytes:
            what = f"{gpu.name} has {gpu.memory_bytes / GB:.0f} GB, and the model takes {model_bytes / GB:.0f} GB"
            fix = "take a machine with a larger one, or name the GPUs that suffice in CUDA_VISIBLE_DEVICES"
            yield Problem(named, what, fix)


def disk_problems(folder: Path, model_bytes: int, workers: int) -> Iterator[Problem]:
    """Yields that the disk of `folder`, which exists, has no room for what so many workers keep of a model.

    They share its files; each has a part cache, which keeps about as much of what it fetched.
    """
    free, needed = shutil.disk_usage(folder).free, (1 + workers) * model_bytes
    if free < needed:
        what = f"has {free / GB:.1f} GB left, and the model and a cache of it for each worker take {needed / GB:.1f} GB"
        yield Problem(str(folder), what, "free space there, or name a folder on another disk (--dir)")


def clock_problems(here_ms: int, redis_ms: int) -> Iterator[Problem]:
    """Yields that this machine's clock differs from Redis' by more than the run can bear."""
    skew_ms = here_ms - redis_ms
    if abs(skew_ms) > MOST_SKEW_MS:
        what = f"is {abs(skew_ms) / 1000:.0f} s {'ahead of' if skew_ms > 0 else 'behind'} Redis' clock"
        yield Problem("clock", what, "let it be set by NTP (chrony or systemd-timesyncd)")


def store_problems(url: str) -> Iterator[Problem]:
    """Yields that nothing answers where the store should be. Nothing is sent."""
    parts = urlsplit(url)
    place = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection(place, timeout=CONNECT_S).close()
    except OSError as error:
        what = f"{url} cannot be reached from here: {error}"
        yield Problem("store.url", what, "open the way to it, or set ECHO_QUEUE_STORE__URL to its address from here")


def peer_port_problems(config: Config, workers: int) -> Iterator[Problem]:
    """Yields the ports that are not free, of those on which this machine's workers should serve their peers."""
    first = config.weights.peer_port
    if not (first and config.weights.peers and config.weights.reachable):
        return
    for port in range(first, first + workers):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except (OSError, OverflowError) as error:
                fix = "name another one, which is that of the first worker; each further one has the next"
                yield Problem("weights.peer_port", f"{port} cannot be used here: {_why(error)}", fix)


def _why(error: OSError | OverflowError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def peer_warnings(addresses: Sequence[str]) -> Iterator[Problem]:
    """Yields that none of the run's workers can be reached, if it has some: weights then come from the store alone."""
    if addresses and not any(_greets(address) for address in addresses):
        what = f"none of the run's workers can be reached from here ({', '.join(addresses)})"
        yield Problem("peers", what, "nothing has to be done: this worker then reads all weights from the store")


MOST_PORT = (1 << 16) - 1


def _greets(address: str) -> bool:
    """Returns whether there is a worker at `host:port`: it speaks first. Nothing is sent to it."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, ValueError):
        place = host.strip("[]"), whole(port, MOST_PORT)
        with socket.create_connection(place, timeout=GREETING_S) as peer:
            return peer.recv(4) == b"EQ1 "
    return False


def is_behind_nat(own: str, seen: str) -> bool:
    """Returns whether a machine whose own address is `own` is known elsewhere as `seen`.

    Addresses of two kinds say nothing: the machine has both.
    """
    try:
        here, there = (_plain(ip_address(host)) for host in (own, seen))
    except ValueError:
        return False
    return here.version == there.version and here != there


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return getattr(address, "ipv4_mapped", None) or address


def host_towards(url: str) -> str:
    """Returns this machine's own address on the route to the server at `url`; empty if it has no route.

    Nothing is sent. Of several Sentinels the first one counts.
    """
    host = re.sub(r"^[a-z+]+://", "", url).split("/")[0].split(",")[0]
    parts = urlsplit(f"//{host}")
    with suppress(OSError):
        family, kind, _, _, place = socket.getaddrinfo(parts.hostname, parts.port or 6379, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    return ""
