"""Plants one mistake at a time into a copy of the ways to start, and shows that the check which it names finds it.

    python -m tests.infra.planted [terraform | launchers] [WORD ...]

First those checks run on a copy without a mistake: there they must find nothing, or what they find later means nothing.
A mistake counts as found only if what the check says contains the mistake's own words. Words choose mistakes by name.
Ends with 1 if a mistake went unnoticed.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tests.infra.check import ALL, GROUPS, copy_of_tree
from tests.infra.checks import Unavailable

PLAN, POOL, NETWORK = "modules/fleet_plan", "modules/aws/worker_pool", "modules/aws/network"
DOCKER, CHART, SKY = "../../docker", "../helm/echo-queue", "../skypilot"


@dataclass(frozen=True)
class Mistake:
    """In `module`'s `file`, `old` becomes `new`; the check `found_by` must say something with `says` in it."""

    name: str
    module: str
    file: str
    old: str
    new: str
    found_by: str
    says: str

    def plant(self, tree: Path) -> None:
        """Raises `ValueError` unless there is exactly one place for it."""
        path = tree / self.module / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {text.count(self.old)} places in {path.name} instead of one")
        path.write_text(text.replace(self.old, self.new))


MISTAKES = (
    Mistake(
        "unknown argument", POOL, "main.tf",
        "capacity_rebalance        = true", "capacity_rebalancing      = true",
        "validate", "capacity_rebalancing",
    ),
    Mistake(
        "unknown block", POOL, "main.tf",
        "    instances_distribution {", "    instance_distribution {",
        "validate", "instance_distribution",
    ),
    Mistake(
        "wrong type", POOL, "main.tf",
        "max_size                  = var.pool.max_machines", "max_size                  = [var.pool.max_machines]",
        "validate", "number required",
    ),
    Mistake(
        "missing required argument", POOL, "main.tf",
        "  max_size                  = var.pool.max_machines\n", "",
        "validate", "max_size",
    ),
    Mistake(
        "unknown attribute is read", "modules/aws/redis", "outputs.tf",
        "aws_instance.redis.id", "aws_instance.redis.identity",
        "validate", "identity",
    ),
    Mistake(
        "reference between modules that leads nowhere", "aws", "main.tf",
        'module.network.security_groups["worker"]', 'module.network.groups["worker"]',
        "validate", "groups",
    ),
    Mistake(
        "unformatted", NETWORK, "main.tf",
        '  tags   = { Name = "${var.name}-public" }', '  tags = { Name = "${var.name}-public" }',
        "format", "network/main.tf",
    ),
    Mistake(
        "wildcard policy", PLAN, "policies.tf",
        'Resource = "${local.objects}/replay/*"', 'Resource = "*"',
        "rights", "worker",
    ),
    Mistake(
        "a worker may delete", PLAN, "policies.tf",
        '{ Effect = "Allow", Action = ["s3:GetObject", "s3:PutObject"], Resource = "${local.objects}/partials/*" }',
        '{ Effect = "Allow", Action = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],'
        ' Resource = "${local.objects}/partials/*" }',
        "rights", "worker",
    ),
    Mistake(
        "a worker reads every secret", PLAN, "policies.tf",
        "Resource = [for role in roles : var.secrets[role] if contains(keys(var.secrets), role)]",
        "Resource = values(var.secrets)",
        "test", "gives_a_worker_its_own_secret",
    ),
    Mistake(
        "the learner reads the controller's secret", PLAN, "user_data.tf",
        'learner = ["admin", "submitter", "celery", "learner", "monitor"]',
        'learner = ["admin", "submitter", "celery", "learner", "monitor", "controller"]',
        "test", "has_the_redis_machine_alone_make",
    ),
    Mistake(
        "a role of everything", "modules/aws/instance_role", "variables.tf",
        'action != "*" && !endswith(action, ":*")', 'action != "*"',
        "test", "refuses_all_actions_of_a_service",
    ),
    Mistake(
        "secret in user data", PLAN, "user_data.tf",
        '    METADATA            = ""\n', '    METADATA            = ""\n    REDIS_PASSWORD      = "hunter2hunter2"\n',
        "secrets", "hunter2",
    ),
    Mistake(
        "configuration with a password is taken", PLAN, "variables.tf",
        "(password|secret|access_key|token)", "(passphrase)",
        "test", "refuses_a_configuration_with_a_password",
    ),
    Mistake(
        "public port", NETWORK, "main.tf",
        'security_group_id            = aws_security_group.machine["worker"].id\n'
        '  description                  = "Weights, from worker to worker"\n'
        '  referenced_security_group_id = aws_security_group.machine["worker"].id\n'
        '  ip_protocol                  = "tcp"\n'
        "  from_port                    = var.ports.peers_first\n"
        "  to_port                      = var.ports.peers_last\n}\n\n",
        'security_group_id            = aws_security_group.machine["worker"].id\n'
        '  description                  = "Weights, from worker to worker"\n'
        '  cidr_ipv4                    = "0.0.0.0/0"\n'
        '  ip_protocol                  = "tcp"\n'
        "  from_port                    = var.ports.peers_first\n"
        "  to_port                      = var.ports.peers_last\n}\n\n",
        "test", "opens_nothing_to_the_outside",
    ),
    Mistake(
        "Redis for everybody", NETWORK, "variables.tf",
        'can(cidrnetmask(cidr)) && tonumber(split("/", cidr)[1]) >= 24', "can(cidrnetmask(cidr))",
        "test", "refuses_redis_open_to_everybody",
    ),
    Mistake(
        "bucket that may be public", "modules/aws/object_store", "main.tf",
        "restrict_public_buckets = true", "restrict_public_buckets = false",
        "checkov", "CKV_AWS_56",
    ),
    Mistake(
        "disk without encryption", "modules/aws/learner", "main.tf",
        "    encrypted   = true\n", "    encrypted   = false\n",
        "checkov", "CKV_AWS_8",
    ),
    Mistake(
        "checkov is told to look away without a reason", "modules/aws/learner", "main.tf",
        "CKV_AWS_126:Minute-wise metrics of one machine are not worth their price; the run reports its own",
        "CKV_AWS_126",
        "checkov", "without a reason",
    ),
    Mistake(
        "unpinned image", PLAN, "variables.tf",
        '  validation {\n    condition     = can(regex("^[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}$", var.image))',
        "  validation {\n    condition     = length(var.image) > 0",
        "test", "refuses_an_image_by_tag",
    ),
    Mistake(
        "hop limit 2", POOL, "main.tf",
        "http_put_response_hop_limit = 1", "http_put_response_hop_limit = 2",
        "test", "keeps_containers_from_the_metadata_server",
    ),
    Mistake(
        "IMDSv1", POOL, "main.tf",
        'http_tokens                 = "required"', 'http_tokens                 = "optional"',
        "checkov", "CKV_AWS_79",
    ),
    Mistake(
        "machines on demand", POOL, "main.tf",
        "on_demand_percentage_above_base_capacity = 0", "on_demand_percentage_above_base_capacity = 100",
        "test", "takes_spot_machines_alone",
    ),
    Mistake(
        "Terraform fights the controller", POOL, "main.tf",
        "    ignore_changes = [desired_capacity]\n", "    ignore_changes = [max_size]\n",
        "test", "leaves_the_size_to_a_controller",
    ),
    Mistake(
        "eviction allowed", PLAN, "host/redis.conf.tftpl",
        "maxmemory-policy noeviction", "maxmemory-policy allkeys-lru",
        "test", "gives_redis_tls_alone",
    ),
    Mistake(
        "Redis without TLS", PLAN, "host/redis.conf.tftpl",
        "port 0\n", "port 6379\n",
        "test", "gives_redis_tls_alone",
    ),
    Mistake(
        "a pool without limit", POOL, "main.tf",
        "max_size                  = var.pool.max_machines", "max_size                  = 1000",
        "test", "has_a_limit",
    ),
    Mistake(
        "a schema without the limit", PLAN, "pools.schema.json",
        '"machines", "max_machines", "usd_per_hour"],', '"machines", "usd_per_hour"],',
        "pools", "a_pool_without_a_limit",
    ),
    Mistake(
        "broken unit", PLAN, "host/boot.service",
        "Type=oneshot", "Type=oneshoot",
        "units", "oneshoot",
    ),
    Mistake(
        "unit without a program", PLAN, "host/step.service.tftpl",
        "ExecStart=/usr/local/lib/echo-queue/host", "ExecStart=/usr/local/lib/echo-queue/hots",
        "units", "hots",
    ),
    Mistake(
        "user data that cloud-init refuses", PLAN, "user_data.tf",
        "        permissions = one.mode\n", "        permissions = 755\n",
        "user data", "755",
    ),
    Mistake(
        "word of the shell without quotes", PLAN, "host/host.sh",
        'mv "$file.new" "$file"', "mv $file.new $file",
        "shell", "SC2086",
    ),
    Mistake(
        "image that runs as root", DOCKER, "Dockerfile",
        "USER 10001:10001\n", "",
        "images", "runs as user root",
    ),
    Mistake(
        "unpinned base image", DOCKER, "Dockerfile",
        "ARG BASE\n", "ARG BASE=python:3.11-slim\n",
        "images", "BASE has a default",
    ),
    Mistake(
        "entry point in a shell", DOCKER, "Dockerfile",
        'ENTRYPOINT ["echo-queue"]', "ENTRYPOINT echo-queue",
        "images", "not in exec form",
    ),
    Mistake(
        "apt-get without a clean end", DOCKER, "Dockerfile",
        "RUN python3 -m venv", "RUN apt-get install git && python3 -m venv",
        "images", "DL3008",
    ),
    Mistake(
        "images of another version", "../..", "compose.yaml",
        "/echo-queue-learner:0.1.0", "/echo-queue-learner:0.0.9",
        "versions", "echo-queue-learner has 0.0.9",
    ),
    Mistake(
        "chart of another version", CHART, "Chart.yaml",
        "\nversion: 0.1.0", "\nversion: 0.2.0",
        "versions", "Chart.yaml, version has 0.2.0",
    ),
    Mistake(
        "misspelt field of Kubernetes", CHART, "templates/workers.yaml",
        "  replicas: {{ $pool.replicas }}", "  replica: {{ $pool.replicas }}",
        "chart", "replica",
    ),
    Mistake(
        "misspelt key in a template", CHART, "templates/learner.yaml",
        ".Values.learner.disk", ".Values.learner.disc",
        "chart", "storage",
    ),
    Mistake(
        "pod that may run as root", CHART, "templates/_pod.tpl",
        "  runAsNonRoot: true\n", "",
        "chart", "may run as root",
    ),
    Mistake(
        "container that may write its root", CHART, "templates/_pod.tpl",
        "      readOnlyRootFilesystem: true\n", "",
        "chart", "may write its root",
    ),
    Mistake(
        "controller that may read secrets", CHART, "templates/controller.yaml",
        "resources: [pods],", "resources: [pods, secrets],",
        "chart", "the rights are not those of",
    ),
    Mistake(
        "worker with a token of Kubernetes", CHART, "templates/workers.yaml",
        '"state" $pool.cache', '"token" true "state" $pool.cache',
        "chart", "has a token of Kubernetes",
    ),
    Mistake(
        "probe that nobody answers", CHART, "templates/_pod.tpl",
        "    livenessProbe:", "    livenessprobe:",
        "chart", "livenessprobe",
    ),
    Mistake(
        "chart that takes a misspelt key", CHART, "values.schema.json",
        '    "pool": {\n      "type": "object",\n      "additionalProperties": false,',
        '    "pool": {\n      "type": "object",\n      "additionalProperties": true,',
        "chart refusals", "a misspelt key of a pool",
    ),
    Mistake(
        "chart that takes a tag", CHART, "values.schema.json",
        "@sha256:[0-9a-f]{64}|localhost", "(@sha256:[0-9a-f]{64}|:[a-z]+)|localhost",
        "chart refusals", "an image by its tag",
    ),
    Mistake(
        "unknown key of SkyPilot", SKY, "worker.yaml",
        "  use_spot: true", "  use_spott: true",
        "skypilot", "use_spott",
    ),
    Mistake(
        "primary task that is not there", SKY, "learner.yaml",
        "primary_tasks: [learner]", "primary_tasks: [trainer]",
        "skypilot", "trainer",
    ),
    Mistake(
        "worker with the learner's password", SKY, "worker.yaml",
        "  ECHO_QUEUE_WORKER_REDIS_PASSWORD: null", "  ECHO_QUEUE_LEARNER_REDIS_PASSWORD: null",
        "skypilot", "worker.yaml asks for ECHO_QUEUE_LEARNER_REDIS_PASSWORD",
    ),
    Mistake(
        "word of Slurm's script without quotes", "../slurm", "worker.sbatch",
        'scontrol requeue "$SLURM_JOB_ID"', "scontrol requeue $SLURM_JOB_ID",
        "scripts", "SC2086",
    ),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="a group of checks; mistakes with one of these words")
    given = parser.parse_args().words
    checks = [check for word in given for check in GROUPS.get(word, ())] or list(ALL)
    words = [word for word in given if word not in GROUPS]
    named = [one for one in MISTAKES if not words or any(word in one.name for word in words)]
    chosen = [one for one in named if one.found_by in checks]
    for check, module in dict.fromkeys((one.found_by, one.module) for one in chosen):
        if said := _said(check, module, None):
            print(f"{check} finds something in {module}, where nothing is planted: {said}")
            return 1
    print("control: the checks find nothing where nothing is planted", flush=True)
    found = 0
    for mistake in chosen:
        said = _said(mistake.found_by, mistake.module, mistake)
        noticed = any(mistake.says in problem for problem in said)
        found += noticed
        print(f"{mistake.name}: {f'found by {mistake.found_by}' if noticed else f'UNNOTICED: {said}'}", flush=True)
    print(f"{found} of {len(chosen)} mistakes found")
    return 0 if chosen and found == len(chosen) else 1


def _said(check: str, module: str, mistake: Mistake | None) -> list[str]:
    """Returns what the check says about a copy with the mistake. What the machine lacks is told as a finding."""
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        tree = replace(copy_of_tree(Path(scratch)), only=module)
        if mistake is not None:
            mistake.plant(tree.path)
        try:
            return ALL[check](tree)
        except Unavailable as reason:
            return [f"the check {check} was not run: {reason}"]


if __name__ == "__main__":
    sys.exit(main())
