"""Ports for servers that cannot choose one themselves and tell it."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

BELOW_THE_KERNELS = range(15_000, 32_000)
"""The kernel takes ports from 32768 on for connections and for whoever asks for any port (ip_local_port_range)."""
CLAIMS = Path(tempfile.gettempdir()) / f"echo-queue-test-ports-{os.getuid()}"
_claims: list[IO[bytes]] = []
_draw = random.SystemRandom()


def free_port() -> int:
    """Returns a port at which nobody listens, and which no other call returns while this process lives.

    A port of the kernel's own range may be given away again between here and the start of the server.
    """
    CLAIMS.mkdir(exist_ok=True)
    for port in _draw.sample(BELOW_THE_KERNELS, 1000):
        claim = (CLAIMS / str(port)).open("wb")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise OSError("no free port below the kernel's own")
