"""Redis' protocol as the proxy sees it, and what a Redis server may answer in place of doing what it is asked.

Requests are arrays of bulk strings; replies are of any type of RESP2 or RESP3. Pub/sub turns a connection around:
after it the proxy only copies.
"""

from tests.faults.proxy.proxy import Fault, Request

BULKS, ARRAYS, MAPS = b"$!=", b"*~>", b"%|"
PUSHING = ("SUBSCRIBE", "PSUBSCRIBE", "MONITOR")


class Resp:
    """The framing of RESP."""

    def request(self, data: bytearray) -> Request | None:
        end = value_end(data, 0)
        if end is None:
            return None
        words = _words(data, 2)
        name = words[0].decode(errors="replace").upper() if words else ""
        about = words[1].decode(errors="replace") if len(words) > 1 else ""
        return Request(name, about, bytes(data[:end]), end, name in PUSHING)

    def reply(self, data: bytearray, to: Request) -> int | None:
        return value_end(data, 0)

    def leave(self, data: bytearray) -> bytes:
        return b""


def value_end(data: bytearray, at: int) -> int | None:
    """Returns the end of the value that begins at `at`, with all that is in it; None while bytes are missing."""
    left = 1
    while left:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        kind, number = data[at : at + 1], data[at + 1 : line_end]
        at, left = line_end + 2, left - 1
        if kind in BULKS:
            at += int(number) + 2 if int(number) >= 0 else 0
        elif kind in ARRAYS:
            left += max(int(number), 0)
        elif kind in MAPS:
            left += 2 * int(number)
    return at if at <= len(data) else None


def _words(data: bytearray, most: int) -> list[bytes]:
    """The first words of the command that `data` begins with."""
    if data[:1] != b"*":
        return []
    line_end = data.find(b"\r\n")
    words, at = [], line_end + 2
    for _ in range(min(most, int(data[1:line_end]))):
        line_end = data.find(b"\r\n", at)
        length, start = int(data[at + 1 : line_end]), line_end + 2
        words.append(bytes(data[start : start + length]))
        at = start + length + 2
    return words


def refused(error: str) -> Fault:
    """The server says that it will not; it did nothing."""
    return Fault(error.partition(" ")[0], forward=False, answer=f"-{error}\r\n".encode())


LOADING = refused("LOADING Redis is loading the dataset in memory")
READONLY = refused("READONLY You can't write against a read only replica.")
OOM = refused("OOM command not allowed when used memory > 'maxmemory'.")
NOSCRIPT = refused("NOSCRIPT No matching script. Please use EVAL.")
MISCONF = refused("MISCONF Errors writing to the AOF file: No space left on device")
CLUSTERDOWN = refused("CLUSTERDOWN The cluster is down")
MASTERDOWN = refused("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.")
TRYAGAIN = refused("TRYAGAIN Multiple keys request during rehashing of slot")
UNBLOCKED = refused("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)")
BUSY = refused("BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.")
NOREPLICAS = refused("NOREPLICAS Not enough good replicas to write.")
NO_FUNCTION = refused("ERR Function not found")

REFUSALS = (
    LOADING, READONLY, OOM, NOSCRIPT, MISCONF, CLUSTERDOWN, MASTERDOWN, TRYAGAIN, UNBLOCKED, BUSY, NOREPLICAS,
)  # fmt: skip


def a_move(request: Request) -> bool:
    """A call of one of the queue's functions."""
    return request.name in ("FCALL", "FCALL_RO")
