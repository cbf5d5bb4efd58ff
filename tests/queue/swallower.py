"""A proxy in front of Redis that lets a command through and swallows its reply, then cuts the connection.

That is how a network fails worst: the move was made, and whoever made it does not know.
"""

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Swallower:
    """Listens on `port`. While `swallow` is positive, each reply to a `FCALL` is dropped instead of passed on."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = ("127.0.0.1", upstream_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.swallow = 0
        self.swallowed = 0

    def __enter__(self) -> "Swallower":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request, one reply, in turn: enough for a client that waits for each answer."""
        with client, socket.create_connection(self._upstream) as server, suppress(OSError):
            while request := client.recv(1 << 20):
                server.sendall(request)
                reply = server.recv(1 << 20)
                if self.swallow and b"FCALL" in request:
                    self.swallow -= 1
                    self.swallowed += 1
                    return
                client.sendall(reply)
