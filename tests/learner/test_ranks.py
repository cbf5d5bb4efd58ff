"""The processes that a test joins as ranks are a learner's: what they send, sum up and raise."""

import os
import signal

import pytest
import torch

from echo_queue.errors import ConfigError, Problem
from learner.ranks.team import Team
from tests.learner.rank_processes import RankFailedError, run_ranks


def add(team: Team, amount: int) -> tuple[int, torch.Tensor]:
    if team.first:
        team.send(b"add")
    else:
        assert team.receive() == b"add"
    return team.rank, team.sum(torch.tensor([float(team.rank + amount)]))


def refuse(team: Team) -> None:
    if team.rank == 1:
        raise ConfigError(Problem("rank", "is wrong", "mend it"))
    team.sum(torch.zeros(1))


def die(team: Team) -> None:
    if team.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    team.receive()


def test_ranks_return_their_results_in_order() -> None:
    assert run_ranks(3, add, 5) == [(0, torch.tensor(18.0)), (1, torch.tensor(18.0)), (2, torch.tensor(18.0))]


def test_a_rank_that_fails_ends_all_with_its_error() -> None:
    with pytest.raises(ConfigError, match="mend it"):
        run_ranks(2, refuse)


def test_a_rank_that_dies_ends_all() -> None:
    with pytest.raises(RankFailedError, match="rank 1 ended with exit code -9"):
        run_ranks(2, die)
