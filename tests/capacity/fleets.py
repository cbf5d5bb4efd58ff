"""A small fleet file, which tests change as text, and the worked fleets of docs/capacity.md."""

from datetime import date
from pathlib import Path

from echo_queue.capacity.fleet_file import Fleet
from echo_queue.capacity.loading import load_fleet

ROOT = Path(__file__).parents[2]
WORKED = {path.stem: path for path in sorted((ROOT / "configs" / "fleets").glob("*.toml"))}
ON = date(2026, 11, 23)
"""The day of the worked fleets' plans."""

SMALL = """format = 1
name = "small"
[run]
s = 4
groups_per_update = 10
group_size = 4
accepted = { assumed = 1, why = "a" }
[lengths]
mean_tokens = { measured = 100, source = "m" }
spread = { measured = 0.1, source = "m" }
most_tokens = 400
[learner]
gpus = 1
price = { usd_per_hour = 10, on = 2026-11-20, source = "p" }
t_train_s = { measured = 40, source = "m" }
link_gbit = { assumed = 10, why = "a" }
[weights]
parameters = 1_000_000_000
change = { assumed = 0.02, why = "a" }
[pools.good]
gpu = "L4"
cloud = "aws"
region = "us-east-1"
instance_types = ["g6.xlarge"]
max_machines = 20
price = { usd_per_hour = 1, on = 2026-11-20, source = "p" }
interruptions_per_hour = { assumed = 0.5, why = "a" }
boot_s = { assumed = 360, why = "a" }
link_gbit = { assumed = 1, why = "a" }
samples_at_once = 8
tokens_per_s = { 50 = { measured = 40, source = "m" }, 200 = { measured = 10, source = "m" } }
"""


def small(directory: Path, *changes: tuple[str, str], on: date = ON) -> Fleet:
    """The small fleet with these changes of its text, each of which is there."""
    text = SMALL
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    (directory / "fleet.toml").write_text(text, encoding="utf-8")
    return load_fleet(directory / "fleet.toml", on)
