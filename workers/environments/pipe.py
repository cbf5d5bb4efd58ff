"""The environment's end of the socket to the worker (`channel.py` is the other): JSON in frames.

- It blocks until a frame is sent or received whole: the environment is idle between questions, and is killed with its
  worker, or by it.
- Nothing is unpickled: an environment's process can send only its few kinds of answer.
"""

import socket
from typing import Any

import orjson

HEADER_BYTES = 8
FRAME_MAX_BYTES = 256 << 20
"""A longer frame cannot be a valid message."""
RECEIVE_BYTES = 1 << 20


class Pipe:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Sends one message. Raises `OSError` if the other side is gone."""
        frame = orjson.dumps(message)
        self._socket.sendall(len(frame).to_bytes(HEADER_BYTES, "little") + frame)

    def receive(self) -> Any:
        """Returns the next message. Raises `EOFError` once the other side is gone, `ValueError` for no message."""
        size = int.from_bytes(self._exactly(HEADER_BYTES), "little")
        if size > FRAME_MAX_BYTES:
            raise ValueError(f"a message of {size} bytes was announced")
        return orjson.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), RECEIVE_BYTES))
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            data += part
        return bytes(data)
