"""A run of some age: what its updates have left behind in the store and in its directory."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import torch

from echo_queue.config import Config
from echo_queue.connections.storage.object_store import MANIFEST, ObjectStore
from echo_queue.queue import Chunk, PromptSet, SubmitterQueue
from echo_queue.queue.keys import Keys
from echo_queue.queue.submitter import digest_of
from echo_queue.records import PromptRow, PromptShard, Version
from echo_queue.reporting.metrics import MetricsLog, UpdateMetrics
from echo_queue.submission import shards
from learner.model.loading import load_policy
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.recovery.manifest import CheckpointManifest, History, folder_of, name_of
from tests.workers.small import save_model

SET, CHUNK, LEFT = "set", 10_000, 20_000
"""The prompt set, the prompts of a chunk, and those that are left to train."""
SAVE_S = 60.0
PUTS = 8
KEPT, WINDOW = 2, 2.0
BYTE = 96
"""The length of a group, as `lengths` has it."""


@dataclass(frozen=True)
class Age:
    """How much a run has behind it."""

    prompts: int
    updates: int
    checkpoints: int

    def ids(self, number: int) -> tuple[str, ...]:
        """Returns the ids in the checkpoint of that number, counted from 0."""
        first, last = (self.prompts * place // self.checkpoints for place in (number, number + 1))
        return tuple(f"{SET}/0/{index}" for index in range(first, last))

    def version(self, number: int) -> Version:
        return Version(1, self.updates * (number + 1) // self.checkpoints)


def store_history(config: Config, store: ObjectStore, age: Age) -> CheckpointManifest:
    """Stores the checkpoints of `age`, archived as they are after the last one was saved, which it returns."""
    whole = age.checkpoints - KEPT
    manifests = [_manifest(age, number) for number in range(whole)]
    with ThreadPoolExecutor(PUTS) as pool:
        list(pool.map(lambda made: store.put(folder_of(made.name) + MANIFEST, made.encode()), manifests))
    team = Team.alone()
    policy = load_policy(config, torch.device("cpu"), team)
    newest = manifests[-1]
    for number in range(whole, age.checkpoints):
        checkpoint.write(store, team, age.version(number), policy.pieces())
        history = History(age.ids(number), newest.name, WINDOW, _sets(age))
        newest = checkpoint.complete(store, team, age.version(number), history, SAVE_S)
    checkpoint.prune(store, newest, KEPT)
    return newest


def _manifest(age: Age, number: int) -> CheckpointManifest:
    version = age.version(number)
    parent = name_of(age.version(number - 1)) if number else None
    return CheckpointManifest(*version, parent, WINDOW, age.ids(number), _sets(age), name_of(version), ())


def _sets(age: Age) -> dict[str, str]:
    """Returns the digest of the set's prompts, as checkpoints carry it."""
    return {SET: digest_of(_chunks(age.prompts + LEFT))}


def store_prompts(store: ObjectStore, age: Age) -> list[PromptShard]:
    """Stores the shards of the set, as Celery's workers do."""

    def write(chunk: Chunk) -> PromptShard:
        rows = [PromptRow(f"{index} + 1 = ", {}) for index in range(chunk.first, chunk.first + chunk.count)]
        return shards.write(store, SET, chunk.number, chunk.first, rows)

    with ThreadPoolExecutor(PUTS) as pool:
        return list(pool.map(write, _chunks(age.prompts + LEFT)))


def submit(queue: SubmitterQueue, prompt_shards: list[PromptShard]) -> None:
    """Declares the set and submits its shards."""
    queue.declare(PromptSet(SET, "made up"), _chunks(sum(shard.count for shard in prompt_shards)))
    for number, shard in enumerate(prompt_shards):
        queue.submit(SET, number, shard)


def _chunks(prompts: int) -> list[Chunk]:
    return [Chunk(first // CHUNK, first, min(CHUNK, prompts - first)) for first in range(0, prompts, CHUNK)]


def write_metrics(config: Config, age: Age) -> None:
    metrics = MetricsLog(config.run.dir / "metrics.jsonl")
    for version in range(1, age.updates + 1):
        first, last = (age.prompts * place // age.updates for place in (version - 1, version))
        metrics.write(_update(version, tuple(f"{SET}/0/{index}" for index in range(first, last))))


def _update(version: int, ids: tuple[str, ...]) -> UpdateMetrics:
    figures: dict[str, Any] = dict.fromkeys(("reward_mean", "reward_std", "loss", "grad_norm", "clip_fraction"), 0.5)
    figures |= dict.fromkeys(("kl_behaviour", "entropy", "lr", "wait_s", "train_s", "save_s"), 0.1)
    depths = {"backlog": LEFT, "tasks": 16, "retry": 0, "replay": 8, "trained": version * len(ids), "dead": 0}
    return UpdateMetrics(
        time_s=1.8e9 + version,
        lineage=1,
        version=version,
        groups=len(ids),
        samples=2 * len(ids),
        tokens=100 * len(ids),
        lags={"0": len(ids) // 2, "1": len(ids) - len(ids) // 2},
        zero_variance_groups=0,
        window=2.0,
        depths=depths,
        sent_back=0,
        trained_ids=ids,
        **figures,
    )


def note_lengths(client: "redis.Redis", run: str, age: Age) -> None:
    """Writes a byte for each trained prompt, as completions do (`note_length` in completion.lua)."""
    client.set(f"{Keys(run).prefix}lengths:{SET}", bytes([BYTE]) * age.prompts)


def configuration(directory: Path, name: str) -> Path:
    """Writes the run's TOML file, and the small model that it trains."""
    base, path = save_model(directory / "base", seed=1), directory / "run.toml"
    path.write_text(
        f'[run]\nname = "{name}"\ndir = "{directory / "run"}"\n'
        f'[model]\nbase = "{base}"\nmax_prompt_tokens = 32\nmax_new_tokens = 4\n'
        f'[prompts]\nset = "{SET}"\nchunk = {CHUNK}\n'
        '[environment]\nkind = "function"\nfunction = "benchmarks.growth:reward"\n'
        "[rollout]\ngroup_size = 2\nthreads = 1\n[learner]\nbatch_groups = 16\nthreads = 1\n"
    )
    (directory / "run").mkdir()
    return path
