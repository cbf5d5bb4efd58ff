"""The line to copy names the variable or the file that this machine has the monitor's password in, and works."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from echo_queue.cli.redis_cli import monitor_line
from echo_queue.config import Config
from echo_queue.launch.servers.redis_server import RedisServer, User


@pytest.mark.parametrize(
    ("variable", "in_file"),
    [
        ("ECHO_QUEUE_MONITOR_REDIS_PASSWORD", False),
        ("ECHO_QUEUE_REDIS_PASSWORD", False),
        ("ECHO_QUEUE_MONITOR_REDIS_PASSWORD_FILE", True),
    ],
)
def test_the_line_to_copy_lets_the_monitor_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, in_file: bool
) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("no redis-cli on the path: `apt-get install redis-server`")
    users = [User("admin", "all", "~* &* +@all"), User("echo-monitor", "look only", "+ping")]
    server = RedisServer(tmp_path / "redis", users=users)
    server.start()
    try:
        (tmp_path / "password").write_text("look only\n")
        monkeypatch.setenv(variable, str(tmp_path / "password") if in_file else "look only")
        settings = {"url": f"redis://127.0.0.1:{server.port}/0", "username": "echo-{role}"}
        config = Config.model_validate({"run": {"name": "r", "dir": tmp_path}, "redis": settings})
        line = monitor_line(config)
        assert "look only" not in line
        command = ["bash", "-c", f"{line} ping"]
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout.strip() == "PONG", done.stderr
    finally:
        server.stop()
