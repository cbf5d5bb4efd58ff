"""What NCCL is told before it connects the ranks."""

import os
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from learner.ranks import rendezvous
from learner.ranks.place import Place

QUICK = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}


@pytest.mark.parametrize("given", [{}, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}])
def test_no_dump_holds_up_the_end_of_a_rank_that_waits(monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    seen: list[dict[str, str]] = []

    def connect(backend: str, **options: Any) -> None:
        assert (backend, options["device_id"]) == ("nccl", torch.device("cuda", 1))
        seen.append({name: os.environ[name] for name in QUICK})

    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(rendezvous.distributed, "init_process_group", connect)
    rendezvous._connect(Place(1, 2, 1), HashStore(), torch.device("cuda", 1), timedelta(seconds=1))  # type: ignore[arg-type]
    assert seen == [QUICK | given]
