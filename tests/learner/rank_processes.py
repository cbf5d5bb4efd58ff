"""Several processes of this machine that are joined as the ranks of one learner, as a test needs them."""

import os
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Self

import torch
from torch import distributed
from torch.distributed import PrefixStore, TCPStore

from learner.ranks.team import Team
from tests.fork_server import PROCESSES

DEADLINE_S = 480.0
"""The longest that the ranks of a test may take."""
COLLECTIVE_S = 240.0
"""The team's deadline for what all ranks do together, where a test does not wait for it."""
HOST = "127.0.0.1"


class RankFailedError(Exception):
    """A rank raised an exception, or ended without a result."""


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls `function(team, *arguments)` in `size` new processes, and returns what they return, by rank.

    Function, arguments and results are pickled. The first rank that fails ends all, and its failure is raised.
    """
    with RankProcesses(size, function, *arguments) as ranks:
        return ranks.results()


class RankProcesses:
    """Processes that call `function(team, *arguments)`; the end of the block ends them.

    `deadline_s`: the team's deadline for what all ranks do together.
    """

    def __init__(
        self, size: int, function: Callable[..., Any], *arguments: Any, deadline_s: float = COLLECTIVE_S
    ) -> None:
        self.size = size
        self.processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        ports = [PROCESSES.Pipe() for _ in range(1, size)]
        for rank in range(size):
            mine = [end for end, _ in ports] if rank == 0 else [ports[rank - 1][1]]
            own, other = PROCESSES.Pipe()
            place = _Place(rank, size, mine, deadline_s)
            process = PROCESSES.Process(target=_rank, args=(place, other, function, arguments), daemon=True)
            process.start()
            other.close()
            self.processes.append(process)
            self._pipes.append(own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def results(self) -> list[Any]:
        """Returns what each rank returned. Raises the first exception of a rank, whose traceback is in its notes."""
        give_up = time.monotonic() + DEADLINE_S
        found: dict[int, Any] = {}
        while len(found) < self.size:
            left = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in found}
            ended = [rank for pipe, rank in left.items() if pipe in wait(list(left), give_up - time.monotonic())]
            for rank in ended or left.values():
                found[rank] = self.outcome(rank, 0.0)
                if isinstance(found[rank], BaseException):
                    raise found[rank]
        return [found[rank] for rank in range(self.size)]

    def outcome(self, rank: int, deadline_s: float = DEADLINE_S) -> Any:
        """Waits for a rank, and returns its result, or the exception that ended it."""
        if not self._pipes[rank].poll(deadline_s):
            return RankFailedError(f"rank {rank} did not end in time")
        try:
            return pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, ConnectionError):
            self.processes[rank].join()
            return RankFailedError(f"rank {rank} ended with exit code {self.processes[rank].exitcode}")


class _Place(NamedTuple):
    """A rank's place among the others. `ports`: pipes by which rank 0 tells each other rank the port of its store."""

    rank: int
    size: int
    ports: list[Connection]
    deadline_s: float


def _rank(place: _Place, pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Runs in each process. It lives until the test has all results: the others may need its store until then."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        outcome = function(_join(*place), *arguments)
    except BaseException as error:
        error.add_note(f"in rank {place.rank}:\n{traceback.format_exc()}")
        outcome = error
    # Tensors go by value: through a pipe of torch's they would be shared memory, which ends with this process.
    pipe.send_bytes(_pickled(outcome))
    pipe.poll(DEADLINE_S)


def _join(rank: int, size: int, ports: list[Connection], deadline_s: float) -> Team:
    """Joins this process to the others, as a learner does: rank 0 holds the store."""
    timeout = timedelta(seconds=deadline_s)
    port = 0 if rank == 0 else ports[0].recv()
    store = TCPStore(HOST, port, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
    for other in ports if rank == 0 else ():
        other.send(store.port)
    group = PrefixStore("group", store)
    distributed.init_process_group("gloo", store=group, rank=rank, world_size=size, timeout=timeout)
    return Team(rank, size, PrefixStore("team", store), deadline_s=deadline_s, silence_s=deadline_s)


def _pickled(outcome: Any) -> bytes:
    """Returns the outcome as bytes; an exception that cannot be read back is sent as text."""
    data = pickle.dumps(outcome)
    try:
        pickle.loads(data)
    except Exception:
        data = pickle.dumps(RankFailedError(repr(outcome), *getattr(outcome, "__notes__", ())))
    return data
