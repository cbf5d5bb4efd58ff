"""vLLM servers that run as separate processes, of which engines know only the address."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.engines import haste
from tests.engines.models import LONGEST
from tests.servers.ports import free_port
from tests.waiting import wait_until

START_S = 1_800.0
"""The patience with a start, which takes two cores half a minute: the machine may be slow, and busy with much else. A
server that has died is noticed at once."""
ANSWER_S = 300.0
"""The patience with a server that has started, and answers in a second."""
PLAIN = ("--worker-extension-cls", "workers.engines.http.plain_weights.PlainWeights")
FITTING: Mapping[str, str] = {
    "--dtype": "float32",
    "--logprobs-mode": "processed_logprobs",
    "--max-model-len": str(LONGEST),
    "--max-num-seqs": "256",
    "--logits-processors": "tests.engines.unhurried:Unhurried",
}
ROUTES = "--enable-scale-out"
KEY = "a key of the server"
UNFIT = {
    "settings": FITTING | {"--dtype": "bfloat16", "--logprobs-mode": "raw_logprobs", "--max-model-len": "64"},
    "flags": PLAIN,
}
"""Settings of a server that does not fit, and does not have the routes either."""
PACKING = {"flags": (ROUTES, "--api-key", KEY)}
"""Settings of a server that keeps its weights as vLLM on CPUs does."""
ENVIRONMENT = {
    haste.VARIABLE: str(haste.FILE),
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}


class VllmServer:
    """A server as one process group, at its own port; `settings` and `flags` replace those that fit."""

    def __init__(
        self,
        folder: Path,
        log: Path,
        settings: Mapping[str, str] = FITTING,
        flags: Sequence[str] = (ROUTES, *PLAIN),
    ) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        pairs = [word for pair in settings.items() for word in pair]
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
            *("--host", "127.0.0.1", "--port", str(self._port), "--skip-tokenizer-init", "--enforce-eager"),
            *pairs,
            *flags,
        ]
        self._environment = os.environ | ENVIRONMENT
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = self._spawn(log)

    def wait_ready(self) -> "VllmServer":
        wait_until(self._ready, f"{self.url} to be ready", START_S)
        return self

    def _ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()[-3000:]
        return self.answers()

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10):
                return True
        except OSError:
            return False

    def post(self, path: str, body: object) -> None:
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), method="POST")
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=ANSWER_S):
            pass

    def kill(self) -> None:
        """Kills the server at once, with all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=ANSWER_S)
        self._process = None

    def _spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True)


class Servers:
    """One server for each shape of a model and each setting; engines load its weights later.

    They start one after another, in the order in which they are expected: each while tests use those before it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: dict[str, VllmServer] = {}
        self._expected: deque[VllmServer] = deque()
        self._started: VllmServer | None = None
        """The one that was started last."""

    def of(self, folder: Path, **settings: Any) -> VllmServer:
        """Returns the server of the folder's shape with these settings, once it answers."""
        server = self.expect(folder, **settings)
        if server in self._expected:
            self._expected.remove(server)
            self._start(server)
        server.wait_ready()
        self.go_on()
        return server

    def expect(self, folder: Path, **settings: Any) -> VllmServer:
        """Returns the same server, which may not have started yet."""
        config = json.loads((folder / "config.json").read_text())
        shape = {key: value for key, value in config.items() if key != "eos_token_id"}
        key = json.dumps([shape, settings], sort_keys=True)
        if key not in self._servers:
            self._servers[key] = VllmServer(folder, self._directory / f"server-{len(self._servers)}.log", **settings)
            self._expected.append(self._servers[key])
            self.go_on()
        return self._servers[key]

    def go_on(self) -> None:
        """Starts the next server, unless one is on its way."""
        if self._expected and (self._started is None or self._started.answers()):
            self._start(self._expected.popleft())

    def kill(self) -> None:
        for server in self._servers.values():
            server.kill()

    def _start(self, server: VllmServer) -> None:
        self._started = server
        server.start()
