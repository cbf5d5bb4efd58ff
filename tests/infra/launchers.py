"""The checks of the other ways to start: images, chart, SkyPilot's files, shell scripts. Each is as those of `checks`.

They run in an environment of their own (`make infra`), beside that of Terraform's checks, because SkyPilot and checkov
want different versions of the same packages.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.fleet.places.rights import RULES
from tests.infra.checks import Check, Tree, Unavailable

KUBERNETES = "1.37"
"""The version whose schemas judge what the chart renders."""
UNMADE = "the packages of constraints-launchers.txt are not installed: run make infra"
IMAGE = "images.example.org/echo-queue-{}@sha256:" + "0" * 64
ROLES = ("admin", "submitter", "celery", "learner", "worker")
VALUES: Mapping[str, Any] = {
    "config": '[run]\nname = "demo"\n',
    "images": {target: IMAGE.format(target) for target in ("cpu", "worker", "learner")},
    "redis": {"url": "rediss://redis.example.org:6380/0"},
    "store": {"url": "https://s3.eu-west-1.amazonaws.com", "bucket": "demo"},
    "secrets": {role: f"demo-{role}" for role in ROLES},
    "pools": {"l4": {"replicas": 2, "region": "eu-west-1"}},
}
SETS_OF_VALUES: Mapping[str, Mapping[str, Any]] = {
    "one pool": {},
    "no pool yet": {"pools": {}},
    "pools that differ": {
        "pools": {
            "l4": {"tolerations": [{"key": "spot", "operator": "Exists"}], "nodeSelector": {"gpu": "l4"}},
            "a100": {"gpus": 2, "env": {"ECHO_QUEUE_ROLLOUT__ENGINE": "vllm"}, "cache": "1Ti"},
        }
    },
    "a size that an autoscaler owns": {"pools": {"l4": {"replicas": None}}},
    "a controller that owns all sizes": {
        "controller": {"enabled": True, "fleet": "format = 1\n", "act": True},
        "images": {target: IMAGE.format(target) for target in ("cpu", "worker", "learner", "controller")},
        "secrets": {role: f"demo-{role}" for role in (*ROLES, "controller")},
    },
    "workers alone, beside a learner elsewhere": {
        "learner": {"enabled": False},
        "services": {"enabled": False},
        "submission": {"enabled": False},
        "submit": False,
        "secrets": {"worker": "demo-worker"},
        "images": {"worker": IMAGE.format("worker")},
    },
    "rights by service accounts": {
        "storeKeys": False,
        "serviceAccounts": {"worker": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/worker"}},
    },
    "CPUs alone, an authority of one's own, no network policies": {
        "poolDefaults": {"gpus": 0},
        "learner": {"gpus": 0, "storageClass": "fast"},
        "redis": {"url": "rediss://redis:6380/0", "authority": "-----BEGIN CERTIFICATE-----"},
        "networkPolicy": False,
        "imagePullSecrets": ["registry"],
    },
}
"""What the chart is rendered with, by what it is for; each differs from `VALUES`."""
REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "a misspelt key of a pool": ({"pools": {"l4": {"replica": 3}}}, "replica"),
    "a misspelt key": ({"pool": {}}, "pool"),
    "an image by its tag": ({"images": {"worker": "echo-queue-worker:latest"}}, "images/worker"),
    "a password in the address of Redis": ({"redis": {"url": "rediss://worker:secret@redis:6380/0"}}, "redis/url"),
    "a password in the environment": ({"learner": {"env": {"ECHO_QUEUE_LEARNER_REDIS_PASSWORD": "x"}}}, "PASSWORD"),
    "no configuration": ({"config": ""}, "--set-file config=run.toml"),
    "a role without its Secret": ({"secrets": {"learner": ""}}, "secrets.learner"),
    "a controller without a fleet": ({"controller": {"enabled": True}}, "controller.fleet"),
    "a learner that is killed while it saves": ({"learner": {"gracePeriodSeconds": 5}}, "gracePeriodSeconds"),
}
"""What the chart must refuse, and a word of what it then says."""


# Images ---------------------------------------------------------------------------------------------------------------


def images(tree: Tree) -> list[str]:
    """The Dockerfile is what hadolint finds nothing in; no image runs as root, and none is named by a tag alone."""
    program = Path(sys.executable).parent / "hadolint"
    if not program.exists():
        raise Unavailable(UNMADE)
    file = tree.project / "docker" / "Dockerfile"
    done = subprocess.run(
        [str(program), "--no-color", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    return [
        *(line.replace(str(file), "Dockerfile") for line in done.stdout.splitlines()),
        *dockerfile_problems(file.read_text()),
    ]


def dockerfile_problems(text: str) -> Iterator[str]:
    """Yields what hadolint does not look at: the user and the base of each image, and the form of its program."""
    stages: dict[str, tuple[str, str]] = {}
    base, name = "", ""
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "ARG" and rest.startswith("BASE="):
            yield "Dockerfile: BASE has a default, which would be one image today and another tomorrow"
        elif word == "FROM":
            base, _, name = rest.partition(" AS ")
            if base != "${BASE}" and base not in stages and not re.search(r"@sha256:[0-9a-f]{64}$", base):
                yield f"Dockerfile: {base} is not named by its digest"
            stages[name] = (base, stages.get(base, ("", ""))[1])
        elif word == "USER":
            stages[name] = (base, rest.strip())
        elif word in ("ENTRYPOINT", "CMD") and not rest.lstrip().startswith("["):
            yield f"Dockerfile: {word} of {name} is not in exec form, so signals would reach a shell"
    for target in ("cpu", "standalone", "controller", "worker", "learner"):
        if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", stages[target][1]):
            yield f"Dockerfile: {target} runs as user {stages[target][1] or 'root'}, not by a number other than 0"


def versions(tree: Tree) -> list[str]:
    """The wheel, the chart and the images of compose.yaml have one version."""
    version = tomllib.loads((tree.project / "pyproject.toml").read_text())["project"]["version"]
    chart = (tree.project / "infra/helm/echo-queue/Chart.yaml").read_text()
    found = {
        f"Chart.yaml, {key}": re.findall(rf'^{key}: "?([^"\n]*)', chart, re.MULTILINE)[0]
        for key in ("version", "appVersion")
    }
    compose = (tree.project / "compose.yaml").read_text()
    found |= {f"compose.yaml, {image}": tag for image, tag in re.findall(r"/(echo-queue-\w+):([\d.]+)", compose)}
    return [f"{where} has {one}, and pyproject.toml {version}" for where, one in found.items() if one != version]


# The chart ------------------------------------------------------------------------------------------------------------


def chart(tree: Tree) -> list[str]:
    """Helm lints the chart and renders it for all sets of values, and Kubernetes' strict schemas allow that."""
    try:
        import helm_python as helm
        import kubernetes_validate
        import yaml
    except ImportError as error:
        raise Unavailable(UNMADE) from error
    folder = tree.project / "infra/helm/echo-queue"
    problems = []
    for purpose, changes in SETS_OF_VALUES.items():
        values = {**VALUES, **changes}
        report = helm.lint(folder, values, strict=True)
        problems += [f"{purpose}: {one['error']}" for one in report["messages"] if one["severity"] > 1]
        try:
            with helm.Chart.load(folder) as loaded:
                rendered = loaded.render(values, name="demo")
        except helm.HelmError as error:
            problems.append(f"{purpose}: {error}")
            continue
        for file, text in rendered.items():
            for document in filter(None, yaml.safe_load_all(text)):
                try:
                    kubernetes_validate.validate(document, KUBERNETES, strict=True)
                except kubernetes_validate.ValidationError as error:
                    place = ".".join(map(str, error.path))
                    problems.append(f"{purpose}: {Path(file).name}: {place}: {error.message[:200]}")
                found = (*pod_problems(document), *role_problems(document))
                problems += [f"{purpose}: {Path(file).name}: {problem}" for problem in found]
    print(f"  {len(SETS_OF_VALUES)} sets of values", flush=True)
    return problems


def pod_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yields what Kubernetes would allow a pod, and this project does not."""
    pod = document.get("spec", {}).get("template", {}).get("spec")
    if pod is None:
        return
    if not pod.get("securityContext", {}).get("runAsNonRoot"):
        yield "a pod may run as root"
    part = document["metadata"]["labels"]["app.kubernetes.io/component"]
    if pod.get("automountServiceAccountToken") is not (part == "controller"):
        yield f"a pod of {part} has a token of Kubernetes, or the controller has none"
    for container in pod["containers"]:
        context = container.get("securityContext", {})
        if not context.get("readOnlyRootFilesystem") or context.get("capabilities", {}).get("drop") != ["ALL"]:
            yield "a container may write its root, or has capabilities"
        if document["kind"] != "Job" and "livenessProbe" not in container:
            yield "nobody looks whether the container is healthy"


def role_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a role of Kubernetes has beside or instead of the rights that the driver's tests give it."""
    if document["kind"] != "Role":
        return
    rules = {
        (group, resource, frozenset(rule["verbs"]))
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    if rules != set(RULES):
        yield f"the rights are not those of tests/fleet/places/rights.py: {sorted(map(str, rules ^ set(RULES)))}"
    for rule in document["rules"]:
        if rule["resources"] != ["pods"] and not rule.get("resourceNames"):
            yield f"a right on every object of {rule['resources']}"


def chart_refusals(tree: Tree) -> list[str]:
    """The chart refuses what would fail later, or tell a secret, and says where."""
    try:
        import helm_python as helm
    except ImportError as error:
        raise Unavailable(UNMADE) from error
    problems = []
    for mistake, (changes, word) in REFUSED.items():
        with helm.Chart.load(tree.project / "infra/helm/echo-queue") as loaded:
            try:
                loaded.render(merged(VALUES, changes), name="demo")
            except helm.HelmError as error:
                if word not in str(error):
                    problems.append(f"{mistake}: it is refused without the word {word}: {error}")
            else:
                problems.append(f"{mistake}: the chart takes it")
    print(f"  {len(REFUSED)} refusals", flush=True)
    return problems


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with the changes, section by section."""
    both = {
        key: merged(values[key], changes[key])
        for key in values.keys() & changes.keys()
        if isinstance(values[key], dict)
    }
    return {**values, **changes, **both}


# SkyPilot and shell ---------------------------------------------------------------------------------------------------


SKY = """
import json, re, sys
from sky import dag
from sky.utils import dag_utils
for file in sys.argv[1:]:
    secrets = [(name, "secret") for name in re.findall(r"^  (ECHO_QUEUE_\\w+): null$", open(file).read(), re.MULTILINE)]
    try:
        loaded = dag_utils.load_dag_from_yaml(file, secrets_overrides=secrets)
    except Exception as error:
        print(json.dumps([file, f"{type(error).__name__}: {error}"]))
        continue
    for task in loaded.tasks:
        if not task.run or not task.resources:
            print(json.dumps([file, f"{task.name} runs nothing"]))
"""


def skypilot(tree: Tree) -> list[str]:
    """SkyPilot's own parser takes its files; a worker's file asks for the secrets of workers alone."""
    if shutil.which("sky", path=str(Path(sys.executable).parent)) is None:
        raise Unavailable(UNMADE)
    folder = tree.project / "infra/skypilot"
    files = sorted(folder.glob("*.yaml"))
    environment = os.environ | {"HOME": str(tree.scratch), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SKY, *map(str, files)],
        capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=tree.project,
    )  # fmt: skip
    if done.returncode != 0:
        return [f"SkyPilot's parser ended with {done.returncode}: {done.stderr[-500:]}"]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    secrets = re.findall(r"^  (ECHO_QUEUE_\w+): null$", (folder / "worker.yaml").read_text(), re.MULTILINE)
    return [
        *(f"{Path(file).name}: {' '.join(problem.split())}" for file, problem in said),
        *(f"worker.yaml asks for {name}" for name in secrets if not name.startswith("ECHO_QUEUE_WORKER_")),
    ]


def scripts(tree: Tree) -> list[str]:
    """Shellcheck finds nothing in the scripts of images, Slurm and SkyPilot."""
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise Unavailable("shellcheck is not on the path: run make infra")
    files = [
        *tree.project.glob("infra/*.sh"),
        *tree.project.glob("infra/slurm/*.sbatch"),
        *tree.project.glob("docker/*.sh"),
    ]
    words = [program, "-f", "gcc", "--shell=bash", *map(str, sorted(files))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return [line.replace(f"{tree.project}/", "") for line in done.stdout.splitlines()]


LAUNCHER_CHECKS: Mapping[str, Check] = {
    "images": images,
    "versions": versions,
    "chart": chart,
    "chart refusals": chart_refusals,
    "skypilot": skypilot,
    "scripts": scripts,
}
