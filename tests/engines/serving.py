"""vLLM servers that run as separate processes, of which engines know only the address."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.engines.models import LONGEST
from tests.servers.ports import free_port
from tests.waiting import wait_until

START_S = 180.0
STOP_S = 60.0
PLAIN = ("--worker-extension-cls", "workers.engines.http.plain_weights.PlainWeights")
FITTING: Mapping[str, str] = {
    "--dtype": "float32",
    "--logprobs-mode": "processed_logprobs",
    "--max-model-len": str(LONGEST),
    "--max-num-seqs": "256",
    "--logits-processors": "tests.engines.unhurried:Unhurried",
}
ENVIRONMENT = {
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
        flags: Sequence[str] = ("--enable-scale-out", *PLAIN),
        **environment: str,
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
        self._environment = os.environ | ENVIRONMENT | environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

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
        with urllib.request.urlopen(request, timeout=120):
            pass

    def kill(self) -> None:
        """Kills the server at once, with all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=STOP_S)
        self._process = None

    def _spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True)


class Servers:
    """One server for each shape of a model, started on the first request; engines load its weights later."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_shape: dict[str, VllmServer] = {}

    def of(self, folder: Path) -> VllmServer:
        return self.expect(folder).wait_ready()

    def expect(self, folder: Path) -> VllmServer:
        """Starts the server of the folder's shape, if there is none; it may not answer yet."""
        config = json.loads((folder / "config.json").read_text())
        shape = json.dumps({key: value for key, value in config.items() if key != "eos_token_id"}, sort_keys=True)
        if shape not in self._by_shape:
            log = self._directory / f"server-{len(self._by_shape)}.log"
            self._by_shape[shape] = VllmServer(folder, log)
        return self._by_shape[shape]

    def kill(self) -> None:
        for server in self._by_shape.values():
            server.kill()
