"""A message that sends its reader to a page of the documentation sends it to the page that has the thing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = re.compile(r"docs/[a-z]+\.md")
HAS = {
    ("echo_queue/capacity/loading.py", "docs/capacity.md"): "| section | keys |",
    ("echo_queue/capacity/loading.py", "docs/simulation.md"): "| key of `[simulation]` | default | meaning |",
    ("echo_queue/cli/plan/estimate.py", "docs/lora.md"): "Bytes of a publication, for each value of the factors",
    ("echo_queue/cli/plan/estimate.py", "docs/weights.md"): "and count headers, digests and tables",
    ("echo_queue/cli/plan/fleet_plan.py", "docs/capacity.md"): "## How near the bounds are",
    ("echo_queue/cli/run/start.py", "docs/operations.md"): "## Paged at night",
    ("echo_queue/cli/run/end.py", "docs/operations.md"): "## What died, and why?",
    ("echo_queue/config/checks.py", "docs/configuration.md"): "or the endpoint of any S3 server",
    ("echo_queue/config/loading.py", "docs/configuration.md"): "## `[staleness]`",
    ("echo_queue/config/loading.py", "docs/rights.md"): "`redis.username` names the user",
    ("echo_queue/connections/redis_check.py", "docs/reliability.md"): "### What Redis must be",
    ("echo_queue/connections/redis_errors.py", "docs/rights.md"): "| role | may call |",
    ("echo_queue/connections/store_check.py", "docs/rights.md"): "Learner, and the user that runs `services`:",
    ("echo_queue/fleet/drivers/command.py", "docs/fleet.md"): "| command | must |",
    ("echo_queue/fleet/drivers/groups/aws.py", "docs/fleet.md"): "ec2:DescribeSpotPriceHistory",
    ("echo_queue/fleet/drivers/groups/kubernetes_api.py", "docs/fleet.md"): "rights",
    ("echo_queue/fleet/invitation/issuing.py", "docs/rights.md"): "\nWorker:\n",
    ("echo_queue/fleet/invitation/register.py", "docs/rights.md"): "Only `admin` may",
    ("echo_queue/queue/caller.py", "docs/rights.md"): "| role | may call |",
    ("echo_queue/launch/servers/serving.py", "docs/rights.md"): "`redis.username` names the user",
    ("echo_queue/submission/configured_sets.py", "docs/configuration.md"): "## `[prompts]`",
    ("echo_queue/weights/ciphers.py", "docs/rights.md"): "run_keys",
    ("learner/batch_collector.py", "docs/operations.md"): "## Paged at night",
    ("learner/model/attention/__init__.py", "docs/models.md"): "| family (`model_type`) | trained |",
    ("learner/update_metrics.py", "docs/learning.md"): "## The guard",
    ("workers/engines/http/server_trial.py", "docs/engines.md"): "--worker-extension-cls",
    ("workers/engines/vllm/setup.py", "docs/engines.md"): "## Installing vLLM",
    ("workers/environments/interactive.py", "docs/environments.md"): "## A class of yours",
}
"""(file with the message, page that it names) → what the page must have for it."""


def pointers() -> Iterator[tuple[str, str]]:
    """Yields (file, page) of all texts that are no docstrings."""
    for package in ("echo_queue", "learner", "workers"):
        for file in (ROOT / package).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                    yield from ((str(file.relative_to(ROOT)), page) for page in PAGE.findall(node.value))


def test_every_page_that_a_message_names_is_in_the_table() -> None:
    assert sorted(set(pointers())) == sorted(HAS)


@pytest.mark.parametrize(("pointer", "thing"), HAS.items(), ids=[" ".join(pointer) for pointer in HAS])
def test_a_page_has_what_the_message_says(pointer: tuple[str, str], thing: str) -> None:
    assert thing in (ROOT / pointer[1]).read_text(encoding="utf-8")
