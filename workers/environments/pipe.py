"""Messages between the worker and its environment: JSON in frames over a socket.

- Every frame is sent or received whole within its deadline, or the call raises: `TimeoutError`, or `EOFError` once the
  other side is gone. A child that stops in the middle of a message thus blocks no worker.
- Nothing is unpickled: an environment's process can send only its few kinds of answer.
"""

import socket
import time
from typing import Any

import orjson

HEADER_BYTES = 8
FRAME_MAX_BYTES = 256 << 20
"""A longer frame cannot be a valid message."""
RECEIVE_BYTES = 1 << 20


class Pipe:
    """The environment's end of the socket (`channel.py` is the worker's)."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any, timeout_s: float | None) -> None:
        """Sends one message. Raises `OSError` if the other side is gone."""
        frame = orjson.dumps(message)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(len(frame).to_bytes(HEADER_BYTES, "little") + frame)

    def receive(self, timeout_s: float | None) -> Any:
        """Returns the next message. Raises `ValueError` for bytes that are not a message."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        size = int.from_bytes(self._exactly(HEADER_BYTES, give_up), "little")
        if size > FRAME_MAX_BYTES:
            raise ValueError(f"a message of {size} bytes was announced")
        return orjson.loads(self._exactly(size, give_up))

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int, give_up: float | None) -> bytes:
        data = bytearray()
        while len(data) < size:
            left_s = None if give_up is None else give_up - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            try:
                part = self._socket.recv(min(size - len(data), RECEIVE_BYTES))
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            data += part
        return bytes(data)
