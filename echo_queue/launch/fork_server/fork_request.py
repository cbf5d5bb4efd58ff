"""What the supervisor and the fork server say to each other, a JSON object for each message.

The supervisor sends a `ForkRequest`, with two open files: the role's log and the guard's pipe. The fork server says
`READY` once, then `{"pid": ...}` for each request, in order, and `{"pid": ..., "code": ...}` for each end.
"""

from dataclasses import asdict, dataclass
from typing import Self

import orjson

READY = orjson.dumps({"ready": True})
MESSAGE_BYTES = 1 << 16


@dataclass(frozen=True)
class ForkRequest:
    """The process to fork, `python -m MODULE ARGUMENT...`. `sign`: with which it reports itself to the guard."""

    module: str
    arguments: tuple[str, ...]
    sign: str

    def encoded(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decoded(cls, message: bytes) -> Self:
        fields = orjson.loads(message)
        return cls(fields["module"], tuple(fields["arguments"]), fields["sign"])
