"""Starts the chart's pool of workers with `podman kube play`, beside a run on this machine.

    python -m tests.images.pod PYTHON

PYTHON has Helm's library (constraints-launchers.txt). The run's Redis and store are outside of the pod, which reaches
them through its network's gateway, with a worker's password alone. Each line that is printed is a promise that was
kept; the exit code is 1 at the first one that was not.
"""

import json
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from echo_queue.connections.endpoints import Endpoints, resolve
from echo_queue.models.hub import BASE_FOLDER
from tests.faults.proxy.proxy import Proxy, Raw
from tests.images.check import image, kept
from tests.images.engine import ROOT, Engine, docker_answers, prepare
from tests.waiting import wait_until
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, generating, tensors_of

NAME, POOL = "pod-check", "cpu"
RENDER_S, STARTS_S, GRACE_S = 120.0, 120.0, 60
DECODES = (4, 4)
RENDER = """
import json, sys
import helm_python, yaml
with helm_python.Chart.load("infra/helm/echo-queue") as chart:
    rendered = chart.render(json.load(sys.stdin), name=sys.argv[1])
documents = [document for text in rendered.values() for document in yaml.safe_load_all(text) if document]
print(yaml.safe_dump_all(documents))
"""
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(64)]


def main(helm: str) -> int:
    if docker_answers():
        print("SKIPPED: Docker plays no pods; where Podman is the only engine, this is checked")
        return 0
    engine = Engine(NAME)
    try:
        with tempfile.TemporaryDirectory(prefix="pod-") as folder, outside(Path(folder)) as run:
            follow(engine, run, helm, Path(folder))
    except (AssertionError, RuntimeError) as error:
        print(f"BROKEN: {error}")
        return 1
    return 0


@contextmanager
def outside(folder: Path) -> Iterator[WorkerHarness]:
    """A run with more work than the check has time for, and leases that outlast it; its learner trains nothing."""
    endless = save_model(folder / "endless", seed=0, stop=False)
    run = WorkerHarness(
        folder,
        endless,
        run={"name": NAME},
        model={"base": str(endless), "max_prompt_tokens": 64, "max_new_tokens": 400},
        environment={"kind": "math", "function": ""},
        rollout={"concurrent_groups": 2, "progress_s": 3600.0},
        learner={"batch_groups": 64},
        queue={"lease_s": 600.0},
    )
    try:
        run.store.upload_folder(endless, BASE_FOLDER)
        run.begin(QUESTIONS, tensors_of(endless), answer="3")
        yield run
    finally:
        run.end()


def follow(engine: Engine, run: WorkerHarness, helm: str, folder: Path) -> None:
    """Checks the pod from its start to its end."""
    with ExitStack() as stack:
        gateway = stack.enter_context(network(engine))
        ends = resolve(run.config, "worker")
        redis, store = (stack.enter_context(reachable(url)) for url in (ends.redis.url, ends.store.url))
        values = {
            "config": run.path.read_text(),
            "images": {"worker": image("worker")},
            "redis": {"url": f"redis://{gateway}:{redis.port}/0"},
            "store": {"url": f"http://{gateway}:{store.port}", "bucket": ends.store.bucket},
            "secrets": {"worker": f"{NAME}-worker"},
            **{part: {"enabled": False} for part in ("learner", "services", "submission")},
            "submit": False,
            "pools": {POOL: {"gpus": 0, "gracePeriodSeconds": GRACE_S}},
        }
        pod = stack.enter_context(played(engine, rendered(values, helm), worker_secret(engine, ends), folder))
        wait_until(lambda: generating(run), "tokens from the pod", STARTS_S, lambda: engine.logs(pod))
        (worker,) = run.status().workers
        kept(f"the chart's worker pod leases from a run outside, and generates: {worker.name} holds {worker.held}")
        assert len(run.drain(2)) == 2
        kept("its groups arrive at the learner")
        assert engine.succeeds(pod, "echo-queue", "healthy", "worker"), "the pod's probe fails"
        engine("stop", "--time", str(GRACE_S), pod)
        state = engine.inspect(pod)["State"]
        assert state["ExitCode"] == 0, f"the worker ended with {state['ExitCode']}: {engine.logs(pod)}"
        released = run.queue.reclaim().released
        assert released > 0 and not run.status().workers, f"{released} tasks were handed back"
        assert run.queue.audit().ok
        kept(f"on SIGTERM it hands {released} tasks back and ends with 0, and the audit holds")


def reachable(url: str) -> Proxy:
    """Returns a proxy that listens on all networks of this machine, for a server on its loopback interface."""
    port = urlsplit(url).port
    assert port is not None, url
    return Proxy(Raw(), port, host="")


def rendered(values: dict[str, Any], helm: str) -> str:
    """Returns what Helm makes of the chart with these values."""
    done = subprocess.run(
        [helm, "-c", RENDER, NAME],
        input=json.dumps(values), capture_output=True, text=True, timeout=RENDER_S, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"the chart was not rendered: {done.stderr[-2000:]}")
    return done.stdout


def worker_secret(engine: Engine, endpoints: Endpoints) -> str:
    """Returns the Secret of a worker, as `kubectl create secret` makes it.

    Podman before 4.4 mounts the values as they stand there (containers/podman issue 16625), so it gets them decoded.
    """
    data = {
        "redis-password": endpoints.redis.password or "",
        "store-access-key": endpoints.store.access_key or "",
        "store-secret-key": endpoints.store.secret_key or "",
    }
    version = engine("version", "--format", "{{.Client.Version}}").split(".")
    if tuple(map(int, version[:2])) >= DECODES:
        data = {name: b64encode(text.encode()).decode() for name, text in data.items()}
    return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{NAME}-worker"}, "data": data})


@contextmanager
def network(engine: Engine) -> Iterator[str]:
    """Makes the pod's network; yields the address of its gateway, which is this machine."""
    engine("network", "create", NAME)
    try:
        (made,) = json.loads(engine("network", "inspect", NAME))
        yield made["subnets"][0]["gateway"]
    finally:
        engine("network", "rm", "--force", NAME, check=False)


@contextmanager
def played(engine: Engine, documents: str, secret: str, folder: Path) -> Iterator[str]:
    """Plays the documents; yields the name of the worker's container. Volumes that were made for it go with it."""
    (folder / "pool.yaml").write_text(documents)
    (folder / "secret.json").write_text(secret)
    volumes = set(engine("volume", "ls", "--quiet").split())
    engine("secret", "create", f"{NAME}-worker", str(folder / "secret.json"))
    try:
        engine("kube", "play", "--network", NAME, str(folder / "pool.yaml"))
        yield f"{NAME}-worker-{POOL}-pod-0-worker"
    finally:
        engine("kube", "down", str(folder / "pool.yaml"), check=False)
        engine("secret", "rm", f"{NAME}-worker", check=False)
        for volume in set(engine("volume", "ls", "--quiet").split()) - volumes:
            engine("volume", "rm", "--force", volume, check=False)


if __name__ == "__main__":
    prepare("pods.conf")
    sys.exit(main(sys.argv[1]))
