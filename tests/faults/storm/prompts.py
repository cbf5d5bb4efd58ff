"""The prompt sets of a storm, each the same whenever it is written: which are submitted, which are held out, and which
prompts are poison.
"""

import random
from pathlib import Path

import orjson

from echo_queue.config import Component, Config, Evaluation, Prompts
from tests.faults.storm.simulated import VOCABULARY

MOST_TURNS = 3
ONE_IN_POISON, ONE_IN_POISON_HELD_OUT = 997, 37
"""Prompts that no environment can score, among those of training and those that are held out."""
HELD_OUT = "held-out-"
FINAL_SET, FINAL_ROWS = "final", 10
"""Declared at the beginning, submitted last: until then the run cannot be finished."""


def write_set(directory: Path, seed: int, number: int, component: str = "") -> Prompts:
    """Returns set `number` of a storm, the same each time; writes its source unless it is there.

    One of a component is smaller, because the run ends only when the component of the least weight has trained its own.
    """
    draw = random.Random(f"{seed} {number}")
    source = directory / "sources" / f"set-{number:04d}.jsonl"
    rows = draw.randint(300, 2_000) // (4 if component else 1)
    if not source.exists():
        write_rows(source, rows, number)
    return Prompts.model_validate(
        {
            "set": f"{component}.{source.stem}" if component else source.stem,
            "source": str(source),
            "epochs": draw.choice((1, 1, 1, 2)),
            "priority": draw.choice((0, 0, 1)),
            "order": draw.choice(("sequential", "shuffled")),
            "chunk": draw.choice((100, 500, 1_000)),
        }
    )


def write_first(component: Component, rows: int) -> None:
    """Writes the source of a component's first set."""
    write_rows(Path(component.source), rows, number_of(component.name))


def with_set(config: Config, prompts: Prompts) -> Config:
    """Returns the configuration of this set; in a mixture its component has the set's properties."""
    component = config.component_of(prompts.set)
    if component is None:
        return config.model_copy(update={"prompts": prompts})
    changes = prompts.model_dump(include={"source", "epochs", "order"})
    mixture = tuple(one.model_copy(update=changes) if one is component else one for one in config.mixture)
    return config.model_copy(update={"mixture": mixture, "prompts": prompts})


def write_held_out(evaluation: Evaluation, rows: int) -> None:
    """Writes the source of an evaluation."""
    write_rows(Path(evaluation.source), rows, number_of(evaluation.name), ONE_IN_POISON_HELD_OUT)


def final_set(config: Config, directory: Path) -> Prompts:
    """Returns the final set, which is of the first component if there is a mixture."""
    name = f"{config.mixture[0].name}.{FINAL_SET}" if config.mixture else FINAL_SET
    return Prompts.model_validate({"set": name, "source": str(final_source(directory))})


def final_source(directory: Path) -> Path:
    return directory / "sources" / f"{FINAL_SET}.jsonl"


def is_poison(task: str) -> bool:
    """Returns whether no environment can score this prompt; `write_rows` marks the same ones."""
    name, _, index = task.rsplit("/", 2)
    one_in = ONE_IN_POISON_HELD_OUT if name.startswith(HELD_OUT) else ONE_IN_POISON
    return (int(index) + 1 + number_of(name)) % one_in == 0


def number_of(name: str) -> int:
    """Returns the number of the set of this name."""
    return 0 if name.endswith(FINAL_SET) else int(name.rpartition("-")[2])


def write_rows(source: Path, rows: int, number: int, one_in: int = ONE_IN_POISON) -> None:
    """Writes the file whole or not at all."""
    source.parent.mkdir(parents=True, exist_ok=True)
    unfinished = source.with_suffix(".tmp")
    lines = (
        {
            "prompt": f"w{number % VOCABULARY} w{row % VOCABULARY}",
            "wanted": f"w{row % VOCABULARY}",
            "poison": (row + number) % one_in == 0,
            "turns": 1 + row % MOST_TURNS,
        }
        for row in range(1, rows + 1)
    )
    unfinished.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    unfinished.replace(source)
