"""The settings of a storm: how often roles are killed and stopped, and the run's own rules, which its seed draws."""

import random
import shutil
from pathlib import Path
from typing import Any

from echo_queue.config import Config, toml_text
from echo_queue.config.loading import load
from echo_queue.launch.supervisor import Role
from tests.faults.storm import prompts, simulated

WORKERS, SPOTS = ("worker-1", "worker-2"), ("spot-1", "spot-2")
"""Workers that the supervisor keeps, and those that come and go."""
POOLS = ("cheap", "dear")
"""Pools of the fleet; the processes of its machines are called like them."""
LEASE_S, RANK_DEADLINE_S = 1.0, 4.0
MOST_RANKS = 2
ACTIONS_PER_S = 4.0
KILLS = {
    "worker": 32,
    "learner": 12,
    "celery": 12,
    "submit": 9,
    "redis": 8,
    "store": 8,
    "controller": 8,
    "services": 3,
    "supervisor": 3,
    "power cut": 1,
}
KILLS_WITH_RANKS = {**KILLS, "learner": 4}
"""Ranks that were killed are back after seconds, in which the launcher notices the death and they find each other."""
STOPS = {"worker": 6, "learner": 2, "controller": 2, "celery": 1, "submit": 1, "redis": 1, "store": 1}
KINDS = ("function", "interactive")
HELD_OUT_ROWS = (40, 80)
"""The fewest and the most prompts of a held-out set."""
FIRST_ROWS = (300, 1_000)
"""The fewest and the most prompts of a component's first set."""
COMPONENT = "kind-"
IN_CONTAINERS = {"worker": 0.12, "spot": 0.6}
"""The share of all kills and notices that workers in containers get, where one takes seconds to begin."""


def supervised_roles(workers: tuple[str, ...] = WORKERS) -> tuple[Role, ...]:
    """The roles that the supervisor keeps, as `echo-queue run` does."""
    return (
        Role("services", ("services",), grace_s=20.0, servers=True),
        Role("celery", ("celery",), grace_s=3.0),
        Role("learner", ("learner",), grace_s=10.0, ends=True),
        *(Role(name, ("worker", name), grace_s=3.0, ends=True) for name in workers),
        Role("submit", ("submit",), ends=True),
        Role("controller", ("controller",), grace_s=3.0),
    )


def configure(directory: Path, seed: int, ranks: int | None = None) -> Config:
    """The run of a storm, written to `directory`. `ranks`: those of its learner; None: as the seed draws."""
    simulated.make_base(directory / "base")
    (directory / "run.toml").write_text(toml_text.written(rules(directory, seed, ranks)))
    config = load(directory / "run.toml", {})
    draw = random.Random(f"held out {seed}")
    for evaluation in config.evaluation:
        prompts.write_held_out(evaluation, draw.randint(*HELD_OUT_ROWS))
    for component in config.mixture:
        prompts.write_first(component, draw.randint(*FIRST_ROWS))
    return config


def in_words(config: Config) -> str:
    """Returns the rules that decide most, as a phrase."""
    staleness = config.staleness
    pace = "paced" if staleness.pace else "not paced"
    held_out = ", ".join(f"{one.samples} samples every {one.every_updates} updates" for one in config.evaluation)
    return (
        f"{config.rollout.mode}, {config.environment.kind}, S = {staleness.s}, κ = {staleness.kappa}, "
        f"B = {config.learner.batch_groups}, {pace}, "
        f"what is late is {'sent back' if staleness.late == 'requeue' else 'waited for'}, "
        f"{_methods(config)}, {f'mixture {config.mixture_weights}' if config.mixture else 'one kind of work'}, "
        f"held out: {held_out}, "
        f"{'a learner of one process' if config.learner.ranks == 1 else f'{config.learner.ranks} ranks'}"
    )


def _methods(config: Config) -> str:
    """Returns the methods of selection that are on."""
    changed = config.selection.model_dump(exclude_defaults=True)
    return " and ".join(f"{name} = {value}" for name, value in changed.items()) or "all is trained in order"


def rules(directory: Path, seed: int, ranks: int | None = None) -> dict[str, Any]:
    """Returns the configuration, section by section, as the seed draws it."""
    drawn_ranks = random.Random(f"ranks {seed}").randint(1, MOST_RANKS)
    draw = random.Random(f"rules {seed}")
    program = shutil.which("redis-server") if seed % 2 else None  # else Valkey
    mode = draw.choice(("in-flight", "in-flight", "push-pull", "pull"))  # sync is pull by a single worker
    s = 0 if mode == "pull" else draw.choice((0, 1, 2, 4, 4))
    drawn: dict[str, Any] = {
        "run": {"name": "storm", "dir": str(directory / "run"), "seed": seed % 2**31},
        "redis": {"program": program} if program else {},
        "model": {"base": str(directory / "base"), "max_prompt_tokens": 8, "max_new_tokens": simulated.LONG},
        "environment": _environment("interactive" if draw.random() < 0.5 else "function"),
        "rollout": {
            "workers": len(WORKERS + SPOTS),
            "mode": mode,
            "group_size": 2,
            "concurrent_groups": 64,
            "progress_s": 0.1,
            "grace_s": 2.0,
            "evaluation_share": random.Random(f"share {seed}").choice((0.1, 0.5)),
        },
        "staleness": {
            "s": s,
            "kappa": draw.choice((1, 1, "auto", s + 1)),
            "pace": draw.random() < 0.75,
            "late": draw.choice(("requeue", "wait")),
            "late_deadline_s": 3.0,
        },
        "learner": {
            "batch_groups": draw.choice((128, 192, 256)),
            "checkpoint_updates": draw.choice((1, 2, 3)),
            "keep_checkpoints": draw.choice((2, 5)),
            "ranks": ranks or drawn_ranks,
            "rank_deadline_s": RANK_DEADLINE_S,
        },
        "queue": {"lease_s": LEASE_S, "max_attempts": 6, "stall_deadline_s": 40.0, "inline_max_bytes": 800},
        "submission": {"reconcile_s": 0.5, "deadline_s": 120.0},
        "telemetry": {"heartbeat_s": 0.25},
        "weights": {
            "part_bytes": 4_096,
            "chunk_bytes": 1_024,
            "anchor_every": draw.choice((2, 4, 16)),
            "skips": [2, 4],
            "encrypt": draw.random() < 0.5,
        },
        "selection": _selection(random.Random(f"selection {seed}"), s),
        "evaluation": _evaluations(directory, random.Random(f"evaluations {seed}")),
        "mixture": _mixture(directory, random.Random(f"mixture {seed}")),
    }
    if drawn["mixture"] and all("environment" in one for one in (*drawn["mixture"], *drawn["evaluation"])):
        del drawn["mixture"][0]["environment"]  # an [environment] that nothing uses is refused
    return drawn


def _environment(kind: str) -> dict[str, object]:
    function = "guessing:Guessing" if kind == "interactive" else "rewards:matches_column"
    return {"kind": kind, "function": f"tests.workers.{function}"}


def _mixture(directory: Path, draw: random.Random) -> list[dict[str, object]]:
    """In half of the storms several components, any with an environment of its own, and all but the first with a limit:
    its samples are long enough to be stored on the way."""
    if draw.random() < 0.5:
        return []
    names = [f"{COMPONENT}{number}" for number in range(1, draw.randint(2, 3) + 1)]
    return [
        {
            "name": name,
            "weight": draw.choice((1, 1, 3, 6, 0.5)),
            "source": str(directory / "sources" / f"{name}.jsonl"),
            "order": draw.choice(("sequential", "shuffled")),
            "max_new_tokens": draw.choice((0, simulated.LONG // 2, simulated.SHORT) if name != names[0] else (0,)),
        }
        | ({"environment": _environment(draw.choice(KINDS))} if draw.random() < 0.5 else {})
        for name in names
    ]


def _evaluations(directory: Path, draw: random.Random) -> list[dict[str, object]]:
    """One held-out set, or two, of which any may be scored by another environment than training's."""
    names = [f"{prompts.HELD_OUT}{number}" for number in range(1, draw.randint(1, 2) + 1)]
    return [
        {
            "name": name,
            "source": str(directory / "sources" / f"{name}.jsonl"),
            "samples": draw.randint(1, 3),
            "temperature": draw.choice((0.0, 0.7, 1.0)),
            "max_new_tokens": draw.choice((0, simulated.SHORT, simulated.LONG // 2)),
            "every_updates": draw.randint(2, 5),
        }
        | ({"environment": _environment(draw.choice(KINDS))} if draw.random() < 0.5 else {})
        for name in names
    ]


def _selection(draw: random.Random, s: int) -> dict[str, object]:
    """Each method by itself or with others; no group is old enough to be trained again at S = 0, and DoPR trains one
    prompt at a time, for which a storm is too short."""
    return {
        "refill": draw.random() < 0.5,
        "pairs_kept": draw.choice((1.0, 0.5)),
        "shuffle_rounds": draw.choice((0, 2)),
        "reuse_groups": draw.choice((0, 32)) if s else 0,
        "curriculum": draw.choice(("off", "mopps")),
        "curriculum_window": draw.choice((64, 4096)),
    }
