"""What the supervisor and the fork server say to each other, a JSON object for each message.

The supervisor sends a `ForkRequest` together with an open file, the role's log. The fork server says `READY` once, then
`{"pid": ...}` or `REFUSED` for each request, in order, and `{"pid": ..., "code": ...}` for each end. A process
waits until the supervisor, which has told the guard by then, says `{"begin": pid}`.
"""

from dataclasses import asdict, dataclass
from typing import Self

import orjson

READY = orjson.dumps({"ready": True})
REFUSED = orjson.dumps({"refused": True})
MESSAGE_BYTES = 1 << 16


@dataclass(frozen=True)
class ForkRequest:
    """The process to fork, `python -P -m MODULE ARGUMENT...`."""

    module: str
    arguments: tuple[str, ...]

    def encoded(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decoded(cls, message: bytes) -> Self:
        fields = orjson.loads(message)
        return cls(fields["module"], tuple(fields["arguments"]))
