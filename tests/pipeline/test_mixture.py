"""`echo-queue run` of a mixture: one kind of work that is broken neither stops nor starves the others."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from echo_queue.cli.inspect.live.watcher import monitor
from echo_queue.connections.connect import connect_store
from echo_queue.errors import DONE, HOPELESS
from learner.recovery.checkpoint import trained_ids
from tests.pipeline.supervised_run import TINY, SupervisedRun, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SORT, ADD, WORDS, LATE = 32, 16, 8, 8
"""Prompts of each component."""
MIXTURE = f"""\
[prompts]
chunk = 20

[[mixture]]
name = "sort"
weight = 2
source = "reasoning-gym:number_sorting"
options = {{ size = {SORT}, seed = 7, min_numbers = 2, max_numbers = 3, min_value = 0, max_value = 9 }}

[[mixture]]
name = "add"
source = "reasoning-gym:chain_sum"
options = {{ size = {ADD}, seed = 7, min_terms = 2, max_terms = 2, min_digits = 1, max_digits = 1 }}
max_new_tokens = 4

[[mixture]]
name = "words"
weight = 0.5
source = "words.jsonl"
environment = {{ kind = "function", function = "rewards:longest" }}

"""
FURTHER = """\
[[mixture]]
name = "late"
source = "late.jsonl"
environment = { kind = "function", function = "rewards:longest" }

"""
BROKEN = "def longest(prompts, completions, **columns):\n    raise RuntimeError('the judge is gone')\n"
MENDED = "def longest(prompts, completions, **columns):\n    return [float(len(one)) for one in completions]\n"


def write(directory: Path, rewards: str, further: str = "") -> Path:
    """Writes the user's reward, the prompts and the configuration of the run; returns the last one's path."""
    directory.joinpath("rewards.py").write_text(rewards)
    for name, count in ("words", WORDS), ("late", LATE):
        rows = (orjson.dumps({"prompt": f"{name} {number}"}) + b"\n" for number in range(count))
        directory.joinpath(f"{name}.jsonl").write_bytes(b"".join(rows))
    path = directory / "mixture.toml"
    text = re.sub(r"\[prompts\].*?\n\n", lambda _: MIXTURE + further, TINY.read_text(), flags=re.DOTALL)
    path.write_text(text)
    return path


def test_a_component_that_is_broken_does_not_stop_the_others_and_is_trained_once_it_is_mended(
    tmp_path: Path, start: Callable[..., SupervisedRun]
) -> None:
    run = start(write(tmp_path, BROKEN), ECHO_QUEUE_QUEUE__MAX_ATTEMPTS="2", ECHO_QUEUE_ROLLOUT__WORKERS="1")
    assert run.ends() == HOPELESS, run.told()
    assert trained(run) == {"sort": SORT, "add": ADD}, run.told()
    assert "the judge is gone" in run.output.read_text()
    recorded = [task for update in run.updates() for task in update.trained_ids]
    for place in range(3, 1 + len(recorded) // 2, 3):  # the groups of two batches may come in any order
        assert abs(sum(task.startswith("sort/") for task in recorded[:place]) - 2 * place / 3) <= 8, recorded
    figures = [update.components["add"] for update in run.updates() if "add" in update.components]
    assert sum(one.groups for one in figures) == ADD
    assert all(one.length_mean <= 4 for one in figures)

    write(tmp_path, MENDED, FURTHER)  # the run is finished: it goes on with what died, and with a further component
    run.again()
    assert run.ends() == DONE, run.told()
    assert trained(run) == {"sort": SORT, "add": ADD, "words": WORDS, "late": LATE}, run.told()


def trained(run: SupervisedRun) -> Counter[str]:
    """Returns how many prompts of each component the checkpoints hold, and checks the queue's account of them."""
    with serving(run.config):
        ids, audit = trained_ids(connect_store(run.config)), monitor(run.config).audit()
    assert len(ids) == len(set(ids)) == audit.trained and audit.ok
    return Counter(task.partition("/")[0] for task in ids)
