"""Runs the quick start of compose.yaml in containers, on the images of `make images`: `python -m tests.images.check`.

Each line that it prints is a promise that was kept; it ends with 1 at the first one that was not.
"""

import json
import sys
import tomllib
from pathlib import Path

from tests.images.engine import ROOT, Engine, prepare
from tests.waiting import wait_until

TARGETS = ("cpu", "standalone", "controller", "worker", "learner")
LIVING = ("services", "submission", "learner", "worker")
CONFIG = "/etc/echo-queue/run.toml"
MOST_MB_OF_CPU = 300
STARTS_S, TRAINS_S = 600.0, 1800.0
CONFINED = ("--read-only", "--tmpfs", "/tmp:exec", "--cap-drop", "all", "--security-opt", "no-new-privileges")
FREEZE = """
import os, signal, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    if b"valkey-server" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")[0]:
        os.kill(int(pid), signal.Signals[sys.argv[1]])
"""


def main() -> int:
    engine = Engine("echo-queue-check")
    weigh(engine)
    engine.compose("down", "--volumes", check=False)
    try:
        engine.compose("up", "--detach")
        follow(engine)
    except (AssertionError, RuntimeError) as error:
        print(f"BROKEN: {error}")
        print(engine.compose("logs", "--tail", "20", check=False))
        return 1
    finally:
        engine.compose("down", "--volumes", check=False)
    return 0


def follow(engine: Engine) -> None:
    """Checks the run from its first container to its last."""
    for service in LIVING:
        wait_until(lambda service=service: healthy(engine, service), f"{service} to be healthy", STARTS_S)
    kept("services, submission, learner and workers turn healthy")
    for service in LIVING:
        confined(engine, service)
    kept("each runs as user 10001, on a read-only root, without capabilities and without a network")
    freeze(engine)
    leaving = engine.containers("worker")[0]
    engine("stop", "--time", "60", leaving)
    assert exit_code(engine, leaving) == 0, "a worker that was asked to leave did not end with 0"
    kept("a worker that is asked to leave ends with 0 while the run goes on")
    (learner,) = engine.containers("learner")
    wait_until(lambda: not engine.inspect(learner)["State"]["Running"], "the learner to finish", TRAINS_S)
    assert exit_code(engine, learner) == 0, "the learner did not end with 0"
    (services,) = engine.containers("services")
    audit = json.loads(engine("exec", services, "echo-queue", "audit", CONFIG, "--json"))
    assert audit["ok"] and audit["trained"] == audit["submitted"] > 0, audit
    kept(f"the run is finished and its audit holds: {audit['trained']:,} of {audit['submitted']:,} prompts trained")
    for service in ("submission", "services"):
        (container,) = engine.containers(service)
        engine("stop", "--time", "60", container)
        assert exit_code(engine, container) == 0, f"{service} did not end with 0"
    kept("submission and services end with 0 on SIGTERM")


def freeze(engine: Engine) -> None:
    """Stops processes where they are, and lets them go on."""
    frozen = {service: engine.containers(service)[0] for service in ("submission", "learner", "worker")}
    (services,) = engine.containers("services")
    for container in frozen.values():
        engine("kill", "--signal", "STOP", container)
    engine("exec", services, "python3", "-c", FREEZE, "SIGSTOP")
    for service in LIVING:
        wait_until(lambda service=service: not healthy(engine, service), f"{service} to be unhealthy", STARTS_S)
    engine("exec", services, "python3", "-c", FREEZE, "SIGCONT")
    for container in frozen.values():
        engine("kill", "--signal", "CONT", container)
    for service in LIVING:
        wait_until(lambda service=service: healthy(engine, service), f"{service} to be healthy again", STARTS_S)
    kept("a role that hangs, and services whose Redis hangs, turn unhealthy until they go on")


def weigh(engine: Engine) -> None:
    """Prints the images' sizes, and shows that the smallest is small and has what its roles import."""
    size_mb = {target: engine.inspect(image(target))["Size"] / 1e6 for target in TARGETS}
    for target, mb in size_mb.items():
        print(f"{image(target)} {mb:,.0f} MB unpacked", flush=True)
    assert size_mb["cpu"] <= MOST_MB_OF_CPU, f"cpu has more than {MOST_MB_OF_CPU} MB"
    script = Path(__file__).with_name("imports.py").read_text()
    said = engine("run", "--rm", *CONFINED, "--network", "none", "--entrypoint", "python3", image("cpu"), "-c", script)
    kept(f"cpu has at most {MOST_MB_OF_CPU} MB, and {said.strip()}")


def image(target: str) -> str:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return f"localhost/echo-queue-{target}:{version}"


def healthy(engine: Engine, service: str) -> bool:
    """Runs the health check of the service's first container, as the engine does from time to time."""
    container = engine.container(service)
    if not container or not container["State"]["Running"]:
        return False
    command = container["Config"]["Healthcheck"]["Test"]
    assert command[0] in ("CMD", "CMD-SHELL"), command
    return engine.succeeds(container["Id"], *(command[1:] if command[0] == "CMD" else ["sh", "-c", command[1]]))


def confined(engine: Engine, service: str) -> None:
    container = engine.container(service)
    assert container["Config"]["User"] == "10001:10001", service
    assert container["HostConfig"]["ReadonlyRootfs"], service
    looks = (
        "import os; assert os.getuid() == 10001;"
        "assert [line for line in open('/proc/self/status') if line.startswith('CapEff')][0].split()[1] == '0' * 16;"
        "assert [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:] == ['lo']"
    )
    assert engine.succeeds(container["Id"], "python3", "-c", looks), f"{service} may more than it should"
    assert not engine.succeeds(container["Id"], "touch", "/opt/echo-queue/mine"), f"{service} can write its root"


def exit_code(engine: Engine, container: str) -> int:
    code: int = engine.inspect(container)["State"]["ExitCode"]
    return code


def kept(promise: str) -> None:
    print(f"ok: {promise}", flush=True)


if __name__ == "__main__":
    prepare()
    sys.exit(main())
