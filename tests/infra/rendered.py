"""What `fleet_plan` renders, made by Terraform itself: the module has no provider, so nothing is downloaded."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TERRAFORM = ROOT / "infra" / "terraform"
DIGEST = "sha256:" + "0" * 64
ROLES = ("admin", "submitter", "worker", "learner", "monitor", "celery", "controller")
DEADLINE_S = 120
POOL = {"cloud": "aws", "region": "us-east-1", "machines": 1, "max_machines": 1, "usd_per_hour": 0.5}
INPUTS: dict[str, Any] = {
    "run_name": "demo",
    "config": '[run]\nname = "demo"\ndir = "runs/demo"\n',
    "cloud": "aws",
    "region": "us-east-1",
    "image": f"images.example.org/echo-queue@{DIGEST}",
    "redis_image": f"images.example.org/valkey@{DIGEST}",
    "max_usd_per_hour": 20,
    "bucket": "bucket",
    "store_region": "us-east-1",
    "redis_host": "10.60.16.10",
    "account": {"partition": "aws", "id": "123456789012"},
    "secrets": {role: f"echo-queue/demo/{role}" for role in ROLES},
    "pools": json.dumps(
        {
            "format": 1,
            "pools": {
                "cpu": {**POOL, "instance_types": ["c7i.large"], "gpus": 0},
                "l4": {**POOL, "instance_types": ["g6.xlarge"], "gpus": 1},
            },
        }
    ),
}


class Rendered(NamedTuple):
    """`files`: machine → path → (text, permissions), as cloud-init writes them; `user_data`: machine → its text.

    `groups_file`: what the learner's machine finds in the bucket about the pools.
    """

    user_data: dict[str, str]
    files: dict[str, dict[str, tuple[str, str]]]
    store_policies: dict[str, Any]
    groups_file: str


def terraform(folder: Path, *words: str, deadline_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
    """Runs Terraform there, without any configuration of the user's and without asking who has a newer version."""
    environment = os.environ | {"TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    return subprocess.run(
        ["terraform", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )


def render(folder: Path, tree: Path = TERRAFORM, **changes: Any) -> Rendered:
    """Renders the plan of `tree` with `INPUTS` and `changes`. Raises `RuntimeError` with what Terraform says."""
    shutil.copytree(
        tree / "modules" / "fleet_plan", folder / "fleet_plan", ignore=shutil.ignore_patterns(".terraform*")
    )
    outputs = ("user_data", "store_policies", "groups_file")
    root = {
        "module": {"plan": {"source": "./fleet_plan"} | {name: _literal(value) for name, value in INPUTS.items()}},
        "output": {name: {"value": f"${{module.plan.{name}}}"} for name in outputs},
    }
    root["module"]["plan"] |= {name: _literal(value) for name, value in changes.items()}
    (folder / "main.tf.json").write_text(json.dumps(root))
    for words in (("init", "-input=false"), ("apply", "-auto-approve", "-input=false")):
        done = terraform(folder, *words, "-no-color")
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
    values = {name: one["value"] for name, one in json.loads(terraform(folder, "output", "-json").stdout).items()}
    user_data = values["user_data"]
    return Rendered(
        user_data,
        {machine: written_files(text) for machine, text in user_data.items()},
        {role: json.loads(policy) for role, policy in values["store_policies"].items()},
        values["groups_file"],
    )


def written_files(user_data: str) -> dict[str, tuple[str, str]]:
    head, _, document = user_data.partition("\n")
    assert head == "#cloud-config"
    return {one["path"]: (one["content"], one["permissions"]) for one in json.loads(document)["write_files"]}


def _literal(value: Any) -> Any:
    """Keeps Terraform from taking `${` in a text for an expression."""
    return value.replace("${", "$${") if isinstance(value, str) else value
