"""What `--pools` writes is what infra/terraform/modules/fleet_plan reads."""

import json
import re
import shutil
from pathlib import Path

import pytest

from echo_queue.capacity.loading import load_fleet
from echo_queue.capacity.plan.planning import plan_setting
from echo_queue.capacity.plan.pools_file import elsewhere, pools_file
from tests.capacity.fleets import ON, ROOT, WORKED, small
from tests.infra.rendered import render

SCHEMA = json.loads((ROOT / "infra/terraform/modules/fleet_plan/pools.schema.json").read_text(encoding="utf-8"))


def written(fleet_file: Path) -> str:
    fleet = load_fleet(fleet_file, ON)
    chosen = plan_setting(fleet, fleet.run.s, fleet.weights.form, peers=fleet.weights.peers)
    return json.dumps(pools_file(fleet, chosen))


def test_the_file_has_what_its_schema_asks_and_nothing_else() -> None:
    content = json.loads(written(WORKED["qwen3-0.6b-spot"]))
    assert content.keys() == SCHEMA["properties"].keys()
    assert content["format"] == SCHEMA["properties"]["format"]["const"]
    rules = SCHEMA["$defs"]["pool"]
    assert sum(pool["machines"] for pool in content["pools"].values()) > 0
    for name, pool in content["pools"].items():
        assert re.fullmatch(SCHEMA["properties"]["pools"]["propertyNames"]["pattern"], name)
        assert set(rules["required"]) <= pool.keys() <= rules["properties"].keys()
        assert 0 <= pool["machines"] <= pool["max_machines"] <= rules["properties"]["max_machines"]["maximum"]


def test_pools_of_other_clouds_are_named_and_not_written(tmp_path: Path) -> None:
    fleet = small(tmp_path, ('cloud = "aws"', 'cloud = "elsewhere"'))
    chosen = plan_setting(fleet, 4, "delta", peers=True)
    assert pools_file(fleet, chosen)["pools"] == {}
    assert elsewhere(fleet, chosen) == ("good",)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("terraform") is None, reason="Terraform is not on the path: make infra needs it, too")
def test_terraform_takes_the_file(tmp_path: Path) -> None:
    rendered = render(tmp_path, pools=written(WORKED["qwen3-0.6b-spot"]), max_usd_per_hour=20)
    assert "pool/l4-east" in rendered.user_data
