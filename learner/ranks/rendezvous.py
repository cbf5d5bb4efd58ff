"""Joins the ranks of a learner to a team. All of them must be the same program with the same configuration: rank 0
compares, before anything else happens."""

import os
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import orjson
import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore

from echo_queue import __version__
from echo_queue.config import Config
from echo_queue.config.keys import MACHINE, Key, keys_of, value_of
from echo_queue.errors import ConfigError, Problem
from echo_queue.models.fingerprint import fingerprint
from learner.ranks.place import LISTENER, Place
from learner.ranks.team import OtherRankError, RankLostError, Team

SAME_KEYS = ("run.name", "run.seed", "store.bucket", "store.region", "weights.part_bytes")
SAME_SECTIONS = ("model", "rollout", "staleness", "learner", "selection")
"""The part of the configuration on which the ranks' results depend, but for what is each machine's own."""
SAME = "start all ranks with the same configuration, the same packages and the same files of the base model"


def join(config: Config, place: Place | None, device: torch.device, stop: threading.Event) -> Team:
    """Returns the team of this process, once all ranks are there. Without a place it is alone.

    `stop`: set on rank 0 as soon as it is set on any rank.

    Raises `RankLostError` if a rank does not come in time, `ConfigError` if it has another configuration or program.
    """
    if place is None or place.size == 1:
        return Team.alone()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        what = "is True: torchrun would keep messages of earlier starts, which ranks would take for new ones"
        fix = "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun on all machines"
        raise ConfigError(Problem("TORCHELASTIC_USE_AGENT_STORE", what, fix))
    deadline_s = config.learner.rank_deadline_s
    store = _store(deadline_s)
    team = Team(
        place.rank, place.size, store, deadline_s=deadline_s, silence_s=deadline_s + config.queue.stall_deadline_s
    )
    if team.first:
        team.keep_alive(stop)
    else:
        team.pass_on(stop)
    _compare(team, config, device)
    with team.together("meet"):
        _connect(place, store, device, timedelta(seconds=deadline_s))
    return team


def leave() -> None:
    """Ends the collectives of a process that is done; one that failed leaves that to its end."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _connect(place: Place, store: TCPStore, device: torch.device, timeout: timedelta) -> None:
    """Connects this rank to the others for collectives, each of which ends after `timeout`."""
    # Before NCCL's watchdog ends a rank that waits for one that hangs, it may write a dump for debugging. It asks the
    # store of rank 0 for that, without a deadline, and sleeps four times as long as the second variable says.
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000")
    on_gpu = device.type == "cuda"
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=PrefixStore("collectives", store),
        rank=place.rank,
        world_size=place.size,
        timeout=timeout,
        # NCCL connects here, where all ranks are known to be there, and not in the midst of the first collective. It
        # has no deadline of its own for that.
        device_id=device if on_gpu else None,
    )


def _store(deadline_s: float) -> TCPStore:
    """Connects to the store of rank 0, which this process opens if it is rank 0."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = os.environ.get(LISTENER)
    try:
        store = TCPStore(
            host,
            port,
            is_master=os.environ["RANK"] == "0",
            timeout=timedelta(seconds=deadline_s),
            wait_for_workers=False,
            master_listen_fd=int(listener) if listener else None,
        )
    except RuntimeError as error:
        what = f"cannot be reached at {host}:{port}: {str(error).splitlines()[0]}"
        fix = "check MASTER_ADDR and MASTER_PORT, that rank 0 runs, and that its port is free and reachable"
        raise RankLostError(Problem("learner rank 0", what, fix)) from error
    return store


def _compare(team: Team, config: Config, device: torch.device) -> None:
    """Lets rank 0 compare all ranks, and every rank know the result. Raises `ConfigError` if they differ, and on the
    other ranks `OtherRankError`.
    """
    team.report("join", orjson.dumps(_identity(config, device)))
    differences = orjson.loads(team.share(lambda: orjson.dumps(_differences(team.reports("join", team.deadline_s)))))
    if differences:
        error = ConfigError if team.first else OtherRankError
        raise error(*(Problem(where, what, SAME) for where, what in differences))


def _identity(config: Config, device: torch.device) -> dict[str, Any]:
    """Returns what must be the same on all ranks, by name, and the machine's name."""
    programs = {"echo-queue": __version__} | {name: version(name) for name in ("torch", "transformers")}
    programs["base model"] = fingerprint(config)
    settings = {key.path: value_of(config, key.path) for key in keys_of(Config) if _must_agree(key)}
    return {"host": socket.gethostname(), "same": programs | settings | {"device": device.type}}


def _must_agree(key: Key) -> bool:
    return key.whose is not MACHINE and (key.path in SAME_KEYS or key.path.partition(".")[0] in SAME_SECTIONS)


def _differences(reports: Sequence[bytes]) -> list[tuple[str, str]]:
    """Returns where and how ranks differ from rank 0."""
    ranks = [orjson.loads(report) for report in reports]
    first, found = ranks[0]["same"], []
    for rank, identity in enumerate(ranks):
        for name, value in identity["same"].items():
            if value != first.get(name):
                here = f"learner rank {rank} ({identity['host']})"
                found.append((here, f"has {name} = {value!r}, and rank 0 ({ranks[0]['host']}) has {first.get(name)!r}"))
    return found
