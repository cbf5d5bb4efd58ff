"""OpenStack Swift with its S3 front, from PyPI: a real store that checks signatures and honours `If-None-Match`."""

import os
import pwd
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from echo_queue.connections.storage.endpoint import StoreEndpoint
from tests.servers.ports import free_port
from tests.waiting import wait_until

BIN = Path(sys.executable).parent
READY_S = 60.0
RINGS = """
import sys
from swift.common.ring import RingBuilder
for path, port in zip(sys.argv[1::2], sys.argv[2::2]):
    builder = RingBuilder(4, 1, 1)
    builder.add_dev({"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "device": "d1", "weight": 1,
                     "replication_ip": "127.0.0.1", "replication_port": int(port)})
    builder.rebalance()
    builder.get_ring().save(path)
"""
KINDS = ("account", "container", "object")
STORAGE = """[DEFAULT]
swift_dir = {dir}
devices = {dir}/devices
mount_check = false
disable_fallocate = true
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
log_level = ERROR
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
mb_per_sync = 0
network_chunk_size = 1048576
disk_chunk_size = 1048576
"""
PROXY = """[DEFAULT]
swift_dir = {dir}
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
log_level = ERROR
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck proxy-logging cache listing_formats bulk s3api tempauth slo dlo \
proxy-logging proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
object_chunk_size = 1048576
client_chunk_size = 1048576
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
allow_no_owner = true
"""
FILTERS = ("catch_errors", "gatekeeper", "healthcheck", "proxy-logging", "listing_formats", "bulk", "slo", "dlo")


class Swift:
    """One node: a proxy before one account, container and object server."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self._ports: dict[str, int] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['proxy']}"

    def endpoint(self, bucket: str) -> StoreEndpoint:
        return StoreEndpoint(self.url, bucket, access_key="test:tester", secret_key="testing")

    def start(self) -> None:
        """Starts the servers, on their first ports and with their data if they ran before."""
        if not self._ports:
            self._configure()
        for kind in KINDS:
            self._launch(kind)
        for kind in KINDS:  # a proxy that comes up first calls containers missing that it only cannot reach
            self._await(lambda port=self._ports[kind]: _listens(port), kind)  # type: ignore[misc]
        self._launch("proxy")
        self._await(self._answers, "proxy")

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def kill(self) -> None:
        """SIGKILL to all of it, the proxy first: without its servers it says that buckets are missing."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def _await(self, ready: Callable[[], bool], kind: str) -> None:
        def ready_while_all_run() -> bool:
            assert all(process.poll() is None for process in self._processes), f"Swift ended: see {self.dir}/*.log"
            return ready()

        wait_until(ready_while_all_run, f"Swift's {kind} server: see {self.dir}/{kind}.log", READY_S)

    def _configure(self) -> None:
        (self.dir / "devices" / "d1").mkdir(parents=True, exist_ok=True)
        self._ports = {kind: free_port() for kind in (*KINDS, "proxy")}
        words = {"dir": self.dir, "user": pwd.getpwuid(os.getuid()).pw_name}
        for kind in KINDS:
            (self.dir / f"{kind}.conf").write_text(STORAGE.format(kind=kind, port=self._ports[kind], **words))
        filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name.replace('-', '_')}\n" for name in FILTERS)
        cache = (
            "[filter:cache]\nuse = egg:swift#memcache\nmemcache_servers = 127.0.0.1:1\nerror_suppression_limit = 1\n"
        )
        (self.dir / "proxy.conf").write_text(PROXY.format(port=self._ports["proxy"], **words) + filters + cache)
        hashes = "[swift-hash]\nswift_hash_path_suffix = test\nswift_hash_path_prefix = test\n"
        policy = "[storage-policy:0]\nname = one\ndefault = yes\n"
        (self.dir / "swift.conf").write_text(hashes + policy)
        rings = [word for kind in KINDS for word in (str(self.dir / f"{kind}.ring.gz"), str(self._ports[kind]))]
        subprocess.run([sys.executable, "-c", RINGS, *rings], check=True, capture_output=True)

    def _launch(self, kind: str) -> None:
        with (self.dir / f"{kind}.log").open("ab") as log:
            command = [str(BIN / f"swift-{kind}-server"), str(self.dir / f"{kind}.conf")]
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self.dir))

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthcheck", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
