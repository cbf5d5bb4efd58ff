"""Starts a worker of the Helm chart by `podman kube play`, for a run outside of it: `python -m tests.images.kube`.

The chart is rendered by Helm's library, with the addresses and the secrets of that run; Podman takes the pod's
Deployment, its ConfigMap and its Secret as Kubernetes would. It is Podman's word, not Kubernetes': it knows neither
nodes nor policies.
"""

import base64
import json
import os
import sys
import tempfile
import tomllib
from binascii import Error as NotBase64
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

from tests.images.check import CONFIG, STARTS_S, kept
from tests.images.engine import ROOT, Engine, docker_answers, prepare
from tests.waiting import wait_until

RELEASE, POOL, STATE = "demo", "cpu", "/var/lib/echo-queue/services"
KINDS = ("ConfigMap", "Deployment")
RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}


def main() -> int:
    if docker_answers():
        print("SKIPPED: a pod is started by podman kube play, and this machine has Docker")
        return 0
    engine = Engine("echo-queue-kube", ROOT / "tests/images/host_network.yaml")
    pods = {"CONTAINERS_CONF": str(Path(__file__).with_name("pods.conf"))}
    with tempfile.TemporaryDirectory(prefix="kube-") as folder:
        manifest = Path(folder) / "worker.yaml"
        try:
            engine.compose("up", "--detach", "--scale", "worker=0")
            wait_until(lambda: answers(engine, "store.json"), "the services of the run", STARTS_S)
            manifest.write_text(yaml.safe_dump_all(documents(engine)))
            engine("kube", "play", "--network", "host", "--start=false", str(manifest), environment=pods)
            decode_secret(engine)
            engine("pod", "start", f"{RELEASE}-worker-{POOL}-pod-0", environment=pods)
            wait_until(lambda: any(worker["groups"] for worker in workers(engine)), "a group of the pod", STARTS_S)
            kept("a worker of the chart's pod leases and completes tasks of a run outside")
            engine("pod", "stop", "--time", "60", f"{RELEASE}-worker-{POOL}-pod-0", environment=pods)
            wait_until(lambda: not workers(engine), "the pod's worker to have left", STARTS_S)
            audit = json.loads(engine("exec", services(engine), "echo-queue", "audit", CONFIG, "--json"))
            assert audit["ok"] and audit["leased"] == 0, audit
            kept("it hands its tasks back when the pod is ended, and the audit holds")
        except (AssertionError, RuntimeError) as error:
            print(f"BROKEN: {error}")
            print(engine("logs", "--tail", "30", f"{RELEASE}-worker-{POOL}-pod-0-worker", check=False))
            return 1
        finally:
            engine("kube", "down", str(manifest), check=False, environment=pods)
            engine("volume", "rm", "--force", "demo-worker", check=False)
            engine("secret", "rm", "demo-worker", check=False)
            engine.compose("down", "--volumes", check=False)
    return 0


def documents(engine: Engine) -> list[dict[str, Any]]:
    """Returns the documents of the pool, and the Secret of its role."""
    secrets = json.loads(read(engine, "secrets.json"))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    values = {
        "config": (ROOT / "configs/quickstart.toml").read_text(),
        "images": {"worker": f"localhost/echo-queue-worker:{version}"},
        "redis": {"url": json.loads(read(engine, "redis.json"))["url"]},
        "store": {"url": json.loads(read(engine, "store.json"))["url"], "bucket": "echo-queue"},
        "secrets": {"worker": "demo-worker"},
        "pools": {POOL: {"gpus": 0, "sharedMemory": "", "resources": RESOURCES}},
        "learner": {"enabled": False},
        "services": {"enabled": False},
        "submission": {"enabled": False},
        "submit": False,
    }
    with helm.Chart.load(ROOT / "infra/helm/echo-queue") as chart:
        rendered = chart.render(values, name=RELEASE)
    found = [one for text in rendered.values() for one in yaml.safe_load_all(text) if one and one["kind"] in KINDS]
    data = {
        "redis-password": secrets["redis"]["worker"],
        "store-access-key": secrets["store"]["access_key"],
        "store-secret-key": secrets["store"]["secret_key"],
    }
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
    return [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-worker"}, "data": encoded}, *found]


def decode_secret(engine: Engine) -> None:
    """Decodes the files of the Secret, which Podman 4.3 mounts as they are encoded; Kubernetes decodes them."""
    folder = Path(engine("volume", "inspect", "--format", "{{.Mountpoint}}", "demo-worker").strip())
    for file in folder.iterdir():
        try:
            file.write_bytes(base64.b64decode(file.read_bytes(), validate=True))
        except NotBase64:
            continue


def services(engine: Engine) -> str:
    (container,) = engine.containers("services")
    return container


def answers(engine: Engine, file: str) -> bool:
    return engine.succeeds(services(engine), "test", "-e", f"{STATE}/{file}")


def read(engine: Engine, file: str) -> str:
    return engine("exec", services(engine), "cat", f"{STATE}/{file}")


def workers(engine: Engine) -> list[dict[str, Any]]:
    """Returns the heartbeats of the workers that live."""
    said = engine("exec", services(engine), "echo-queue", "status", CONFIG, "--json", check=False)
    if not said:
        return []
    return [one["heartbeat"] for one in json.loads(said)["queue"]["workers"] if one["heartbeat"]]


if __name__ == "__main__":
    prepare()
    os.chdir(ROOT)
    sys.exit(main())
