"""The prompt sets of a storm, each the same whenever it is written: which are submitted, and which are poison."""

import random
from pathlib import Path

import orjson

from echo_queue.config import Prompts
from tests.faults.storm.made_up import VOCABULARY

MOST_TURNS = 3
ONE_IN_POISON = 997
"""Prompts that no environment can score."""
KEEL, KEEL_ROWS = "keel", 10
"""Declared at the beginning, submitted last: until then the run cannot be finished."""


def write_set(directory: Path, seed: int, number: int) -> Prompts:
    """Set `number` of a storm, the same each time; its source is written unless it is there."""
    draw = random.Random(f"{seed} {number}")
    source = directory / "sources" / f"set-{number:04d}.jsonl"
    rows = draw.randint(300, 2_000)
    if not source.exists():
        write_rows(source, rows, number)
    return Prompts.model_validate(
        {
            "set": source.stem,
            "source": str(source),
            "epochs": draw.choice((1, 1, 1, 2)),
            "priority": draw.choice((0, 0, 1)),
            "order": draw.choice(("sequential", "shuffled")),
            "chunk": draw.choice((100, 500, 1_000)),
        }
    )


def keel(directory: Path) -> Prompts:
    return Prompts.model_validate({"set": KEEL, "source": str(keel_source(directory))})


def keel_source(directory: Path) -> Path:
    return directory / "sources" / f"{KEEL}.jsonl"


def is_poison(task: str) -> bool:
    """Whether no environment can score this prompt: as `write_rows` has it."""
    name, _, index = task.rsplit("/", 2)
    number = 0 if name == KEEL else int(name.rpartition("-")[2])
    return (int(index) + 1 + number) % ONE_IN_POISON == 0


def write_rows(source: Path, rows: int, number: int) -> None:
    """Whole, or not there."""
    source.parent.mkdir(parents=True, exist_ok=True)
    partial_sample = source.with_suffix(".partial rollout")
    lines = (
        {
            "prompt": f"w{number % VOCABULARY} w{row % VOCABULARY}",
            "poison": (row + number) % ONE_IN_POISON == 0,
            "turns": 1 + row % MOST_TURNS,
        }
        for row in range(1, rows + 1)
    )
    partial_sample.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    partial_sample.replace(source)
