"""Two workers that are killed again and again while versions come: only what was published ever generates.

The learner's weights drift with every version; workers feed one another. After each swap a worker notes whether every
tensor of its live engine has the digest that the manifest names (`served`).
"""

import random
import time

import pytest
from safetensors.torch import load_file

from echo_queue.queue import Chunk, PromptSet, RunRules
from echo_queue.records import PromptRow
from echo_queue.submission import shards
from learner.recovery import checkpoint
from tests.faults.crash_points.crashing_run import Committer, CrashHarness
from tests.faults.crash_points.fork_server import RoleProcess
from tests.faults.history import served_versions
from tests.seed import session_seed
from tests.waiting import wait_until

PROMPTS = 24
KILLS = 8
DEADLINE_S = 120.0


@pytest.mark.slow
@pytest.mark.parametrize("encrypt", [pytest.param(False, marks=pytest.mark.proof(kind="whole runs", share=0.15)), True])
def test_whatever_is_killed_only_published_weights_generate(
    harness: CrashHarness, encrypt: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    name, chance = f"hot-{encrypt}".lower(), random.Random(session_seed())
    config = harness.config(
        name,
        model={"base": str(harness.base), "max_prompt_tokens": 16, "max_new_tokens": 3},
        rollout={"group_size": 2, "concurrent_groups": 1, "grace_s": 0.3},
        environment={
            "kind": "function",
            "function": "tests.faults.crash_points.role_processes:reward",
            "timeout_s": 20.0,
        },
        queue={"stall_deadline_s": 30.0, "lease_s": 0.3, "max_attempts": 99, "inline_max_bytes": 1 << 20},
        weights={"encrypt": encrypt, "chunk_deadline_s": 0.5},
    )
    queue, store = harness.queue(config), harness.store(config)
    queue.configure(RunRules.of(config))
    rows = [PromptRow("w1", {"kind": "plain", "directory": ""}) for _ in range(PROMPTS)]
    queue.declare(PromptSet("set", "test"), [Chunk(0, 0, PROMPTS)])
    queue.submit("set", 0, shards.write(store, "set", 0, 0, rows))
    tensors = load_file(harness.base / "model.safetensors")
    log = harness.directory / f"log-{name}"
    processes: dict[str, RoleProcess] = {}

    def told() -> str:
        return log.read_text(errors="replace")[-6_000:]

    def all_live() -> None:
        for worker in ("worker", "second worker"):
            if worker not in processes or processes[worker].over.is_set():
                processes[worker] = harness.begin(worker, config, log)

    with Committer(queue, store, tensors, config, most=2) as learner:
        for _ in range(KILLS):
            all_live()
            time.sleep(chance.uniform(0.0, 1.5))
            processes[chance.choice(sorted(processes))].end()
        all_live()
        wait_until(lambda: len(learner.trained) == PROMPTS, "all groups", DEADLINE_S, told)
        queue.finish(learner.lineage)
        wait_until(lambda: all(process.over.is_set() for process in processes.values()), "the workers' end", told=told)
    seen = served_versions.read(config.run.dir)
    assert list((config.run.dir / "part_cache").iterdir()) == [], (
        "each worker removes its own part cache, and those of the dead"
    )
    assert not seen.wrong, told()
    assert learner.generated <= seen.swaps.keys(), "nothing else has generated"
    assert sorted(checkpoint.trained_ids(store)) == sorted(f"set/0/{index}" for index in range(PROMPTS))
    assert queue.audit().ok
    with capsys.disabled():
        print(f" [{seen.swaps.total()} swaps, {len(learner.generated)} versions generated]", end="")
