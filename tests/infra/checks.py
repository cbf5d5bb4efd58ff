"""The checks of infra/terraform, each by a name. A check returns what is wrong, one sentence each; nothing is good.

They run in an environment of their own (`make infra`), on a tree that may be a copy with a mistake in it
(`tests.infra.planted`). What a machine lacks makes a check raise `Unavailable`, which says what would be needed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.infra.rendered import INPUTS, ROOT, Rendered, render, terraform

BUILD = ROOT / "build" / "infra"
DEADLINE_S = 600
MODULES = ("modules/fleet_plan", "modules/aws/*", "modules/gcp/*", "aws", "gcp")
PROVIDERS = {"aws": ("cdktf-cdktf-provider-aws", "6.25.0"), "google": ("cdktf-cdktf-provider-google", "6.50.0")}
"""Provider → the package with its published schema, and the version that this is the schema of."""
GCP = {
    "cloud": "gcp",
    "region": "us-central1",
    "store_secrets": {"access_key": "access", "secret_key": "secret"},
    "pools": json.dumps(
        {
            "format": 1,
            "pools": {
                "g2": {
                    "cloud": "gcp",
                    "region": "us-central1",
                    "instance_types": ["g2-standard-8"],
                    "gpus": 1,
                    "machines": 1,
                    "max_machines": 1,
                    "usd_per_hour": 0.5,
                }
            },
        }
    ),
}
SECRET = re.compile(
    r"AKIA[0-9A-Z]{16}|BEGIN [A-Z ]*PRIVATE KEY|"
    r"(?i:(?:password|secret_key|access_key)\s*[=:]\s*['\"]?[^\s'\"$<>{}()/\\]{6,})"
)
"""Texts that look like a secret: an access key, a private key, or a word that is set to a password."""
BEYOND_SCHEMA = ("begins_above_its_limit", "zone_of_another_region", "could_cost_more_than_the_most", "are_no_json")
"""Refusals that compare two values of a pools file, which JSON Schema cannot."""


class Unavailable(Exception):
    """The machine lacks what the check needs."""


@dataclass(frozen=True)
class Tree:
    """A copy of infra/terraform, and a folder for what checks write. `only`: the one module that Terraform sees.

    Beside it stand copies of the other ways to start, as in the project, whose root is `project`.
    """

    path: Path
    scratch: Path
    only: str = ""

    @property
    def project(self) -> Path:
        return self.path.parents[1]

    def modules(self) -> Iterator[Path]:
        for pattern in [self.only] if self.only else MODULES:
            yield from sorted(self.path.glob(pattern))


Check = Callable[[Tree], list[str]]


# Terraform ------------------------------------------------------------------------------------------------------------


def formatted(tree: Tree) -> list[str]:
    done = terraform(tree.path, "fmt", "-check", "-recursive", "-no-color")
    return [f"{name} is not formatted: run terraform fmt" for name in done.stdout.split()]


def validated(tree: Tree) -> list[str]:
    plugins = stub_providers(tree)
    return [problem for module in tree.modules() for problem in _terraform(tree, plugins, module, "validate")]


def tested(tree: Tree) -> list[str]:
    plugins = stub_providers(tree)
    return [problem for module in tree.modules() for problem in _terraform(tree, plugins, module, "test")]


def _terraform(tree: Tree, plugins: Path, module: Path, command: str) -> list[str]:
    name = module.relative_to(tree.path)
    for words in (("init", "-input=false", f"-plugin-dir={plugins}"), (command,)):
        done = terraform(module, *words, "-no-color", deadline_s=DEADLINE_S)
        if done.returncode != 0:
            said = [line.strip("│ ") for line in (done.stdout + done.stderr).splitlines()]
            errors = [" ".join(said[at : at + 8]) for at, line in enumerate(said) if line.startswith("Error:")]
            return [f"{name}: {error[:400]}" for error in errors] or [f"{name}: terraform {words[0]} failed"]
    if found := re.search(r"(\d+) passed, 0 failed", done.stdout):
        print(f"  {name}: {found[1]} cases", flush=True)
        cases.append(int(found[1]))
    return []


cases: list[int] = []
"""The numbers of cases that `terraform test` passed, one for each module."""


def stub_providers(tree: Tree) -> Path:
    """Makes a plugin folder with a provider that serves the published schema for each provider of the tree."""
    try:
        import grpc  # noqa: F401
        import tf  # noqa: F401
    except ImportError as error:
        raise Unavailable("the packages of constraints-infra.txt are not installed: run make infra") from error
    from tests.infra.provider.schema import Bindings

    text = "\n".join(path.read_text() for path in tree.path.rglob("*.tf"))
    plugins = tree.scratch / "plugins"
    for provider, (package, version) in PROVIDERS.items():
        resources = sorted(set(re.findall(rf'^resource "({provider}_\w+)"', text, re.MULTILINE)))
        data_sources = sorted(set(re.findall(rf'^data "({provider}_\w+)"', text, re.MULTILINE)))
        folder = plugins / "registry.terraform.io" / "hashicorp" / provider / version / "linux_amd64"
        folder.mkdir(parents=True, exist_ok=True)
        schema = tree.scratch / f"{provider}.json"
        schema.write_text(json.dumps(Bindings(package).schema(provider, resources, data_sources)))
        program = folder / f"terraform-provider-{provider}_v{version}"
        run = f"PYTHONPATH={ROOT} exec {sys.executable} -m tests.infra.provider.server {schema}"
        program.write_text(f"#!/bin/sh\n{run}\n")
        program.chmod(0o755)
    return plugins


# Policies and pools ---------------------------------------------------------------------------------------------------


def rights(tree: Tree) -> list[str]:
    """The store's policies are those of docs/rights.md."""
    text = (ROOT / "docs" / "rights.md").read_text()
    blocks = re.findall(r"^(\w+)[^\n]*:\n\n```json\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    filled = {name.lower(): body.replace("BUCKET", "bucket").replace("RUN", "demo") for name, body in blocks}
    documented = {name: json.loads(body) for name, body in filled.items()}
    planned = _rendered(tree, "aws").store_policies
    return [
        f"the policy of {role} is not that of docs/rights.md"
        for role in sorted(documented.keys() | planned.keys())
        if documented.get(role) != planned.get(role)
    ]


def pools(tree: Tree) -> list[str]:
    """The schema of the pools file takes the examples, and refuses what the module's own tests refuse."""
    try:
        import jsonschema
    except ImportError as error:
        raise Unavailable("the packages of constraints-infra.txt are not installed: run make infra") from error
    schema = json.loads((tree.path / "modules/fleet_plan/pools.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    problems = []
    for example in sorted(tree.path.glob("*/pools.example.json")):
        document = json.loads(example.read_text())
        problems += [f"{example.parent.name}: {error.message}" for error in validator.iter_errors(document)]
    refusals = (tree.path / "modules/fleet_plan/tests/refusals.tftest.hcl").read_text()
    refused = re.findall(r'run "refuses_(\w+)" \{[^}]*?pools\s+= (".*")', refusals)
    if not refused:
        problems.append("the module's tests refuse no pools file: there is nothing to compare the schema with")
    for name, text in refused:
        if not name.endswith(BEYOND_SCHEMA) and validator.is_valid(json.loads(json.loads(text))):
            problems.append(f"pools.schema.json takes what the module refuses: {name}")
    return problems


# User data ------------------------------------------------------------------------------------------------------------


def user_data(tree: Tree) -> list[str]:
    """Every machine's user data is what cloud-init's own schema allows, and holds nothing that looks like a secret."""
    try:
        import jsonschema
    except ImportError as error:
        raise Unavailable("the packages of constraints-infra.txt are not installed: run make infra") from error
    validator = jsonschema.Draft4Validator(_cloud_init_schema())
    problems = []
    for cloud in ("aws", "gcp"):
        for machine, text in _rendered(tree, cloud).user_data.items():
            document = json.loads(text.partition("\n")[2])
            problems += [f"{cloud} {machine}: {error.message[:200]}" for error in validator.iter_errors(document)]
    return problems


def secrets(tree: Tree) -> list[str]:
    """No user data holds a password or a key."""
    return [
        f"{cloud} {machine}: {found[0][:60]!r} looks like a secret"
        for cloud in ("aws", "gcp")
        for machine, text in _rendered(tree, cloud).user_data.items()
        for found in [SECRET.search(text)]
        if found
    ]


def units(tree: Tree) -> list[str]:
    """systemd finds nothing to object to in any unit."""
    if shutil.which("systemd-analyze") is None:
        raise Unavailable("systemd-analyze is not on the path: apt install systemd")
    problems = []
    for cloud in ("aws", "gcp"):
        for machine, files in _rendered(tree, cloud).files.items():
            root = tree.scratch / "units" / cloud / machine
            for path, (text, mode) in files.items():
                place = root / path.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
                place.chmod(int(mode, 8))
            names = sorted(path.name for path in (root / "etc/systemd/system").iterdir())
            command = ["systemd-analyze", "verify", f"--root={root}", "--recursive-errors=no", *names]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            said = [line for line in done.stderr.splitlines() if "echo-queue" in line]
            problems += [f"{cloud} {machine}: {line.replace(str(root), '')}" for line in said]
    return problems


def shell(tree: Tree) -> list[str]:
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise Unavailable("shellcheck is not on the path: run make infra")
    scripts = sorted(str(path) for path in tree.path.rglob("*.sh"))
    done = subprocess.run([program, "-f", "gcc", *scripts], capture_output=True, text=True, timeout=120, check=False)
    return [line.replace(f"{tree.path}/", "") for line in done.stdout.splitlines()]


def checkov(tree: Tree) -> list[str]:
    """No check of checkov fails, and each one that is skipped says why."""
    program = Path(sys.executable).parent / "checkov"
    if not program.exists():
        raise Unavailable("checkov is not installed: run make infra")
    command = [
        str(program),
        "-d",
        str(tree.path / tree.only),
        "--framework",
        "terraform",
        "--skip-download",
        "-o",
        "json",
    ]
    environment = os.environ | {"BC_SKIP_MAPPING": "TRUE", "LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment, cwd=tree.scratch
    )
    found = json.loads(done.stdout)["results"]
    failed = {(one["check_id"], one["resource"], one["check_name"]) for one in found["failed_checks"]}
    texts = [path.read_text() for path in (tree.path / tree.only).rglob("*.tf")]
    skips = [line for text in texts for line in re.findall(r"#checkov:skip=(.*)", text)]
    used = {one["check_id"] for one in found["skipped_checks"]}
    print(f"  {len(found['passed_checks'])} passed, {len(skips)} skips", flush=True)
    return [
        *(f"{check} {resource}: {what}" for check, resource, what in sorted(failed)),
        *(f"{skip} is skipped without a reason" for skip in skips if not skip.partition(":")[2].strip()),
        *(f"{skip} is skipped where it does not fail" for skip in skips if skip.partition(":")[0] not in used),
    ]


def _rendered(tree: Tree, cloud: str) -> Rendered:
    folder = tree.scratch / "rendered" / cloud
    if folder not in _renderings:
        folder.mkdir(parents=True, exist_ok=True)
        changes = GCP | {"account": None, "secrets": {"worker": "worker"}} if cloud == "gcp" else {}
        _renderings[folder] = render(folder, tree.path, **{**INPUTS, **changes})
    return _renderings[folder]


_renderings: dict[Path, Rendered] = {}


def _cloud_init_schema() -> Mapping[str, object]:
    """The schema in Debian's package, fetched once and unpacked, not installed."""
    found = BUILD / "cloud-init" / "schema.json"
    if not found.exists():
        found.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            fetched = subprocess.run(
                ["apt-get", "download", "-qq", "cloud-init"],
                cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
            )  # fmt: skip
            packages = list(Path(folder).glob("*.deb"))
            if not packages:
                raise Unavailable(f"cloud-init's schema cannot be fetched with apt: {fetched.stderr.strip()[:200]}")
            subprocess.run(["dpkg", "-x", str(packages[0]), folder], timeout=DEADLINE_S, check=True)
            (schema,) = Path(folder).rglob("schema-cloud-config-v1.json")
            shutil.copy(schema, found)
    return json.loads(found.read_text())  # type: ignore[no-any-return]


CHECKS: Mapping[str, Check] = {
    "format": formatted,
    "validate": validated,
    "test": tested,
    "rights": rights,
    "pools": pools,
    "user data": user_data,
    "secrets": secrets,
    "units": units,
    "shell": shell,
    "checkov": checkov,
}
