"""How many threads code weights beside training."""

import os

import pytest

from learner.publication.coding_threads import RANKS_HERE, threads_beside


@pytest.mark.parametrize(
    ("cores", "ranks", "learner_threads", "threads"),
    [(1, 1, 1, (1, 1)), (4, 1, 1, (3, 3)), (16, 1, 1, (15, 4)), (16, 2, 4, (4, 4)), (192, 8, 1, (23, 4))],
)
def test_threads_code_on_the_cores_that_are_left_and_few_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, learner_threads: int, threads: tuple[int, int]
) -> None:
    """`threads`: where a CPU trains, and where a GPU does."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)))
    environ = {RANKS_HERE: str(ranks)}
    assert tuple(threads_beside(learner_threads, on_gpu=gpu, environ=environ) for gpu in (False, True)) == threads
