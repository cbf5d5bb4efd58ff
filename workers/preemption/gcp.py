"""Compute Engine: `instance/preempted` of the metadata server, which delays its answer until the value changes.

https://cloud.google.com/compute/docs/instances/preemptible and /compute/docs/metadata/querying-metadata
"""

from typing import ClassVar

from workers.preemption.metadata import MetadataServer
from workers.preemption.notice_source import Notice, NoticeSourceAway

WAIT_S = 30
NOTICE_S = 30.0
"""Time from the change to the hard stop."""
FLAVOR = "Metadata-Flavor"


class Gcp:
    ENDPOINT: ClassVar = "http://metadata.google.internal"

    def __init__(self, endpoint: str) -> None:
        self._server = MetadataServer(endpoint)
        self._last_etag = ""

    def poll(self) -> Notice | None:
        """Returns at once the first time; later when the value changes, or after `WAIT_S`."""
        wait = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={self._last_etag}" if self._last_etag else ""
        path = f"/computeMetadata/v1/instance/preempted{wait}"
        answer = self._server.ask(path, {FLAVOR: "Google"}, wait_s=WAIT_S if wait else 0)
        preempted = answer.body.strip().upper()
        if answer.headers.get(FLAVOR) != "Google" or preempted not in (b"TRUE", b"FALSE"):
            self._last_etag = ""
            raise NoticeSourceAway(f"{path}: {answer.body[:80]!r} is not an answer of the metadata server")
        self._last_etag = answer.headers.get("ETag", "")
        return Notice("Compute Engine preempts this instance", NOTICE_S) if preempted == b"TRUE" else None
