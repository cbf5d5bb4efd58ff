"""The worker's end of the socket to an environment's process (`pipe.py` is the other): it never blocks.

What cannot be sent yet is kept, and of a message that has not arrived whole, its beginning.
"""

import socket
from collections.abc import Iterator
from typing import Any

import orjson

from workers.environments.pipe import FRAME_MAX_BYTES, HEADER_BYTES

RECEIVE_BYTES = 64 << 10
"""Memory for more would be mapped anew for each message."""


class Channel:
    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._unsent, self._received = bytearray(), bytearray()
        self._over = False

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: Any) -> None:
        """Sends a message, or the part of it that finds room now; `flush` sends the rest."""
        frame = orjson.dumps(message)
        self._unsent += len(frame).to_bytes(HEADER_BYTES, "little") + frame
        self.flush()

    def flush(self) -> None:
        """Sends what was left. If the other side is gone, `receive` says so."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()

    def receive(self) -> None:
        """Takes what has come, for `messages`. Raises `EOFError` once the other side is gone and all is taken."""
        while not self._over:
            try:
                part = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                part = b""
            self._over = not part
            self._received += part
            if 0 < len(part) < RECEIVE_BYTES:
                return
        if not self._received:
            raise EOFError

    def messages(self) -> Iterator[Any]:
        """Yields the messages that have come whole. Raises `ValueError` for bytes that are none."""
        while (frame := self._frame()) is not None:
            yield orjson.loads(frame)
        if self._over:
            self._received.clear()

    def close(self) -> None:
        self._socket.close()

    def _frame(self) -> bytes | None:
        """Takes the first message out of the received bytes, if it is whole."""
        if len(self._received) < HEADER_BYTES:
            return None
        size = int.from_bytes(self._received[:HEADER_BYTES], "little")
        if size > FRAME_MAX_BYTES:
            raise ValueError(f"a message of {size} bytes was announced")
        if len(self._received) < HEADER_BYTES + size:
            return None
        frame = bytes(self._received[HEADER_BYTES : HEADER_BYTES + size])
        del self._received[: HEADER_BYTES + size]
        return frame
