"""A machine without containers: a folder that stands for its root, and stand-ins for the commands that it lacks here.

`docker run` becomes the same program, as a process, with the environment of the container and none of its caller's. It
refuses a path in that environment which is not mounted, so that a forgotten mount shows. `aws` keeps secrets in a
folder, and asks a metadata server for the credentials of the machine's role, as the AWS CLI does; other calls it notes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.infra.rendered import ROOT

DOCKER = """
import os, pathlib, sys
FLAGS = {"--rm", "--read-only"}
words, log = sys.argv[1:], pathlib.Path(os.environ["STAND_IN_LOG"])
with log.open("a") as lines:
    print("docker", *words, file=lines)
if words[0] != "run":
    sys.exit(0)
environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["STAND_IN_PROJECT"]}
mounted, entrypoint, place = [], "", 1
while words[place].startswith("--"):
    option = words[place]
    if option in FLAGS:
        place += 1
        continue
    value = words[place + 1]
    if option == "--env":
        environment.update([value.split("=", 1)])
    elif option == "--env-file":
        environment.update(line.split("=", 1) for line in open(value).read().splitlines())
    elif option == "--volume":
        source, inside = value.split(":")[:2]
        if not os.path.exists(source) or source != inside:
            sys.exit(f"docker: {value} cannot be mounted")
        mounted.append(source)
    elif option == "--entrypoint":
        entrypoint = value
    elif option == "--workdir":
        os.chdir(value)
    place += 2
root = os.environ["ECHO_QUEUE_ROOT"]
for name, value in environment.items():
    if value.startswith(root) and not any(value == one or value.startswith(one + "/") for one in mounted):
        sys.exit(f"docker: {name}={value} is not in the container")
programs = {
    "echo-queue": [os.environ["STAND_IN_PYTHON"], "-m", "echo_queue.cli"],
    "python3": [os.environ["STAND_IN_PYTHON"]],
    "redis-server": ["redis-server"],
}
command = programs[entrypoint] + words[place + 1 :]
os.execvpe(command[0], command, environment)
"""
AWS = """
import os, pathlib, sys
words, server = sys.argv[1:], os.environ["STAND_IN_METADATA"]
secrets = pathlib.Path(os.environ["STAND_IN_SECRETS"])
def option(name):
    return words[words.index(name) + 1]
def ask(path, method="GET", **headers):
    import urllib.request
    request = urllib.request.Request(server + path, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()
if words[0] == "secretsmanager":
    file = secrets / option("--secret-id").replace("/", "_")
    if words[1] == "put-secret-value":
        text = pathlib.Path(option("--secret-string").removeprefix("file://")).read_text()
        file.write_text(text)
    elif file.exists():
        print(file.read_text())
    else:
        sys.exit("An error occurred (ResourceNotFoundException): it has no value yet")
elif words[:2] == ["configure", "export-credentials"]:
    import json
    token = ask("/latest/api/token", "PUT", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    own = {"X-aws-ec2-metadata-token": token}
    place = "/latest/meta-data/iam/security-credentials/"
    role = json.loads(ask(place + ask(place, **own), **own))
    keys = {name: role[name] for name in ("AccessKeyId", "SecretAccessKey", "Expiration")}
    print(json.dumps({"Version": 1, "SessionToken": role["Token"], **keys}))
else:
    if words[-1] == "-":
        print((secrets / "groups").read_text(), end="")
    with open(os.environ["STAND_IN_LOG"], "a") as lines:
        print("aws", *words, file=lines)
"""
PLACES = re.compile("/(run|etc|var/lib)/echo-queue")


class Machine:
    """A machine as cloud-init leaves it, below `folder`. `metadata`: URL of its metadata server."""

    def __init__(self, folder: Path, files: dict[str, tuple[str, str]], metadata: str, secrets: Path) -> None:
        self.root = folder / "root"
        self._bin = folder / "bin"
        self.log = folder / "docker.log"
        self._write(files)
        self._stand_ins()
        self._environment = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "ECHO_QUEUE_ROOT": str(self.root),
            "STAND_IN_LOG": str(self.log),
            "STAND_IN_PROJECT": str(ROOT),
            "STAND_IN_PYTHON": sys.executable,
            "STAND_IN_METADATA": metadata,
            "STAND_IN_SECRETS": str(secrets),
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def append(self, path: str, line: str) -> None:
        """Adds what only this machine knows to a file: later lines win."""
        with (self.root / path).open("a") as file:
            file.write(line + "\n")

    def step(self, *words: str, deadline_s: float = 60.0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a step of the host to its end, with what systemd says in variables."""
        return subprocess.run(
            [str(self.host), *words],
            env=self._environment | variables,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )

    def begin(self, *words: str) -> "subprocess.Popen[bytes]":
        """Starts a step that goes on, as a unit does."""
        self._processes.append(subprocess.Popen([str(self.host), *words], env=self._environment))
        return self._processes[-1]

    def end(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=30)

    @property
    def host(self) -> Path:
        return self.root / "usr/local/lib/echo-queue/host"

    @property
    def aws(self) -> Path:
        return self._bin / "aws"

    def _write(self, files: dict[str, tuple[str, str]]) -> None:
        for path, (text, permissions) in files.items():
            place = self.root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            is_setting = path.endswith((".env", ".conf"))
            place.write_text(PLACES.sub(rf"{self.root}\g<0>", text) if is_setting else text)
            place.chmod(int(permissions, 8))
        identity = self.root / "var/lib/cloud/data/instance-id"
        identity.parent.mkdir(parents=True)
        identity.write_text("i-0123456789abcdef0\n")
        self.append("etc/echo-queue/host.env", f"CONTAINER_USER={os.getuid()}:{os.getgid()}")

    def _stand_ins(self) -> None:
        self._bin.mkdir()
        for name, text in {"docker": DOCKER, "aws": AWS}.items():
            (self._bin / name).write_text(f"#!{sys.executable} -IS\n{text}")
            (self._bin / name).chmod(0o755)
