"""The goodput of a link, measured by iperf3: the B of every bound that the benchmark prints."""

import subprocess
import time
from collections.abc import Sequence

import orjson

from benchmarks.laboratory.network import Network, namespace_of
from benchmarks.laboratory.system import CommandError, run
from echo_queue.errors import Problem

READY_S = 5.0
SPARE_S = 20.0


def goodput(network: Network, hops: Sequence[tuple[str, str]], seconds: float) -> list[float]:
    """Measures the bytes of payload per second that arrive at the end of each hop (from, to), all hops at once."""
    servers = [_serve(network, end) for _, end in hops]
    try:
        clients = [_call(network, begin, end, seconds) for begin, end in hops]
        return [_received(client, seconds) for client in clients]
    finally:
        for server in servers:
            server.kill()
            server.wait(READY_S)


def _serve(network: Network, name: str) -> "subprocess.Popen[bytes]":
    words = ("ip", "netns", "exec", namespace_of(name), "iperf3", "--server", "--one-off")
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + READY_S
    while ":5201" not in run("ip", "netns", "exec", namespace_of(name), "ss", "-Hltn"):
        if time.monotonic() > give_up:
            raise CommandError(Problem(f"iperf3 at {name}", f"does not listen after {READY_S:g} s", "run it by hand"))
        time.sleep(0.02)
    return server


def _call(network: Network, begin: str, end: str, seconds: float) -> "subprocess.Popen[bytes]":
    words = ("ip", "netns", "exec", namespace_of(begin), "iperf3", "--json", "--client", network.address(end))
    return subprocess.Popen((*words, "--time", str(seconds), "--omit", "1"), stdout=subprocess.PIPE)


def _received(client: "subprocess.Popen[bytes]", seconds: float) -> float:
    try:
        said, _ = client.communicate(timeout=seconds + SPARE_S)
        return float(orjson.loads(said)["end"]["sum_received"]["bits_per_second"]) / 8
    except subprocess.TimeoutExpired:
        client.kill()
        raise CommandError(
            Problem("iperf3", f"has not ended within {seconds + SPARE_S:g} s", "run it by hand")
        ) from None
    except (orjson.JSONDecodeError, LookupError) as error:
        raise CommandError(Problem("iperf3", f"printed no figure: {error}", "run it by hand")) from None
