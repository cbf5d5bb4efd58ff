"""N network namespaces on one switch, each with its own up- and downlink rate.

- The switch is a bridge in a namespace of its own: the machine's own network is never touched.
- Everything has the prefix `eqlab`: anything left by this laboratory, or by one that was killed, is removed as a whole.
- A lock allows one laboratory at a time on a machine: two would falsify each other's figures.
"""

import fcntl
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from benchmarks.laboratory.system import CommandError, run
from echo_queue.errors import DeadlineError, Problem

PREFIX = "eqlab-"
SWITCH = PREFIX + "switch"
BRIDGE = "bridge"
DEVICE = "eth0"
SUBNET = "10.77.0"
LOCK = Path("/run/eqlab.lock")
MEMORY = Path("/dev/shm")
BURST_BYTES = 128 << 10
QUEUE_MS = 60
"""The longest time that a packet may wait at a full link before it is dropped."""
GONE_S = 10.0


def shaping(device: str, mbit: float) -> tuple[str, ...]:
    """Returns the arguments for `tc` that make `device` send at most `mbit` Mbit/s."""
    rate = f"{round(mbit * 1e6)}bit"
    words = ("qdisc", "replace", "dev", device, "root", "tbf", "rate", rate)
    return (*words, "burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms")


def address_of(place: int) -> str:
    """Returns the address of node number `place`, counted from 0."""
    if not 0 <= place < 250:
        raise ValueError(f"node {place}: the laboratory has addresses for 250")
    return f"{SUBNET}.{place + 1}"


class Network:
    """A network of nodes: `with Network() as network: network.add("origin", 400)`.

    `directory` lies in memory and is removed with the network.
    """

    def __init__(self) -> None:
        self.directory = MEMORY / f"{PREFIX}{os.getpid()}"
        self._nodes: dict[str, str] = {}
        self._lock = -1

    def __enter__(self) -> "Network":
        self._lock = os.open(LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise CommandError(
                Problem(str(LOCK), "another laboratory is running on this machine", "wait for its end")
            ) from None
        try:
            sweep()
            self.directory.mkdir()
            run("ip", "netns", "add", SWITCH)
            run("ip", "-n", SWITCH, "link", "add", BRIDGE, "type", "bridge", "forward_delay", "0")
            run("ip", "-n", SWITCH, "link", "set", BRIDGE, "up")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Removes everything."""
        try:
            sweep()
        finally:
            os.close(self._lock)

    def add(self, name: str, mbit: float) -> None:
        """Adds a node to the switch, with `mbit` Mbit/s up and down."""
        namespace, port, place = namespace_of(name), f"p{len(self._nodes)}", len(self._nodes)
        run("ip", "netns", "add", namespace)
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        veth = ("link", "add", DEVICE, "type", "veth", "peer", "name", port, "netns", SWITCH)
        run("ip", "-n", namespace, *veth)
        run("ip", "-n", SWITCH, "link", "set", port, "master", BRIDGE, "up")
        run("ip", "-n", namespace, "address", "add", f"{address_of(place)}/24", "dev", DEVICE)
        run("ip", "-n", namespace, "link", "set", DEVICE, "up")
        self._nodes[name] = port
        self.shape(name, up_mbit=mbit, down_mbit=mbit)

    def shape(self, name: str, up_mbit: float, down_mbit: float) -> None:
        """Changes the rates of a node's link."""
        run("tc", "-n", namespace_of(name), *shaping(DEVICE, up_mbit))
        run("tc", "-n", SWITCH, *shaping(self._nodes[name], down_mbit))

    def address(self, name: str) -> str:
        return address_of(list(self._nodes).index(name))

    def sent_bytes(self, name: str) -> int:
        """Returns the bytes that left the node's link so far, with the headers of segments before segmentation."""
        counter = run("ip", "netns", "exec", namespace_of(name), "cat", f"/sys/class/net/{DEVICE}/statistics/tx_bytes")
        return int(counter)


def namespace_of(name: str) -> str:
    return PREFIX + name


def sweep() -> None:
    """Ends every process in the laboratory's namespaces and removes these and its directories."""
    present = [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.startswith(PREFIX)]
    for namespace in present:
        _empty(namespace)
        run("ip", "netns", "del", namespace)
    for leftover in MEMORY.glob(f"{PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _empty(namespace: str) -> None:
    give_up = time.monotonic() + GONE_S
    while pids := run("ip", "netns", "pids", namespace).split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > give_up:
            what = f"processes {' '.join(pids)} were killed and have not ended in {GONE_S:g} s"
            raise DeadlineError(Problem(namespace, what, "check what holds them"))
        time.sleep(0.02)
