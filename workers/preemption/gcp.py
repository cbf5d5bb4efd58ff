"""Compute Engine: `instance/preempted` of the metadata server, which holds an answer back until it changes.

https://cloud.google.com/compute/docs/instances/preemptible and /compute/docs/metadata/querying-metadata
"""

from typing import ClassVar

from workers.preemption.metadata import Metadata
from workers.preemption.watcher import Away, Notice

WAIT_S = 30
NOTICE_S = 30.0
"""From the change to the hard stop."""
FLAVOR = "Metadata-Flavor"


class Gcp:
    ENDPOINT: ClassVar = "http://metadata.google.internal"

    def __init__(self, endpoint: str) -> None:
        self._server = Metadata(endpoint)
        self._seen = ""

    def look(self) -> Notice | None:
        """The first time it answers at once; later once it differs from the answer before, or after `WAIT_S`."""
        wait = f"?wait_for_change=true&timeout_sec={WAIT_S}&last_etag={self._seen}" if self._seen else ""
        path = f"/computeMetadata/v1/instance/preempted{wait}"
        answer = self._server.ask(path, {FLAVOR: "Google"}, wait_s=WAIT_S if wait else 0)
        preempted = answer.body.strip().upper()
        if answer.headers.get(FLAVOR) != "Google" or preempted not in (b"TRUE", b"FALSE"):
            self._seen = ""
            raise Away(f"{path}: {answer.body[:80]!r} is not the metadata server's")
        self._seen = answer.headers.get("ETag", "")
        return Notice("Compute Engine preempts this instance", NOTICE_S) if preempted == b"TRUE" else None
