"""The processes that train one model together, and the messages between them.

- Rank 0 decides, and the others do as it says: `send` and `receive` carry its decisions to every rank, `report` and
  `reports` carry results back to it. Tensors go through collectives instead (`together`).
- Messages lie in a key-value store of torch, which rank 0 holds: they need no common order, travel beside collectives,
  and a missing one names its rank.
- Every wait ends at a deadline with an error that names the ranks that did not answer.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

from torch import Tensor, distributed
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed import DistError

from echo_queue import failpoints
from echo_queue.errors import EchoQueueError, Problem

MESSAGE_BYTES = 4 << 20
"""A longer message is stored in pieces of this size: torch's store refuses more than 8 MiB at once."""
LISTEN_S = 5.0
"""Longest wait for a decision between two looks at rank 0's sign of life."""
ANSWER_S = 5.0
"""Time that the ranks have to say that they live, once a collective has failed."""
BEAT_S = 1.0
"""Time between two signs of life of rank 0."""
SETTLE_S, POLL_S = 30.0, 0.01
SHORTEST_S = 0.001
"""A shorter wait is none: torch rounds it to 0 ms, which it takes for no timeout at all."""
ALIVE, ASKED_TO_END = "alive", "asked to end"
"""Keys of the counters that rank 0 raises as a sign of life, and any rank when it is asked to end."""
RESTART_FIX = "all ranks are started again at the newest checkpoint; see each rank's last lines if it happens again"

T = TypeVar("T")

log = logging.getLogger(__name__)


class RankLostError(EchoQueueError):
    """Another rank has ended or does not answer. All ranks begin again at the newest checkpoint."""


class OtherRankError(EchoQueueError):
    """This rank ends because of an error that another rank, or rank 0 for all of them, explains to the user."""


class Team:
    """One process's view of all `size` processes that train together.

    `deadline_s`: the longest wait for another rank's part in what all ranks do. `silence_s`: how long rank 0 may give
    no sign of life while the others wait for its decision. The main thread alone calls `send`, `receive`, `together`
    and `sum`; any thread may call the other methods.
    """

    def __init__(self, rank: int, size: int, store: Store, *, deadline_s: float, silence_s: float) -> None:
        self.rank, self.size, self.deadline_s, self._silence_s = rank, size, deadline_s, silence_s
        self._store = store
        self._connections = threading.local()
        self._connection().open()
        self._decisions = 0
        """Number of decisions sent or received so far."""
        self._broken: RankLostError | None = None
        """The error by which a thread of this process has noticed first that a rank is lost."""

    @classmethod
    def alone(cls) -> "Team":
        """Returns the team of a process that trains by itself."""
        return cls(0, 1, HashStore(), deadline_s=1.0, silence_s=1.0)

    @property
    def first(self) -> bool:
        """True for rank 0, which decides."""
        return self.rank == 0

    # Decisions of rank 0 ----------------------------------------------------------------------------------------------

    def share(self, decide: Callable[[], bytes]) -> bytes:
        """Returns on every rank what `decide` returns on rank 0, the only one to call it. Raises `RankLostError`."""
        if not self.first:
            return self.receive()
        self.send(decision := decide())
        return decision

    def send(self, decision: bytes) -> None:
        """Rank 0: sends the next decision to every other rank."""
        if self.size == 1:
            return
        self.tell(f"decision/{self._decisions}", decision)
        self._decisions += 1

    def tell(self, name: str, decision: bytes) -> None:
        """Rank 0: leaves a decision for every other rank, under a name that is used once."""
        failpoints.step("send decision", lambda: self._write(name, decision))

    def receive(self) -> bytes:
        """Waits for rank 0's next decision, as long as rank 0 gives signs of life. Raises `RankLostError`."""
        self._decisions += 1
        return self.hear(f"decision/{self._decisions - 1}")

    def hear(self, key: str) -> bytes:
        """Waits for the decision of that name, as long as rank 0 gives signs of life. Raises `RankLostError`."""
        beats, heard = -1, time.monotonic()
        while not self._arrive([key], LISTEN_S):
            self._check()
            if (counted := self._add(ALIVE, 0)) != beats:
                beats, heard = counted, time.monotonic()
            if time.monotonic() - heard > self._silence_s:
                raise self._lost([0], "decide what to do next", self._silence_s)
        decision = self._read(key)
        if self._add(f"{key}/read", 1) == self.size - 1:
            self._ask(lambda client: client.delete_key(f"{key}/read"))
            self._delete(key)
        return decision

    def settle(self) -> None:
        """Rank 0: waits until every rank has read the last decision, since the messages end with this process."""
        give_up = time.monotonic() + min(SETTLE_S, self.deadline_s)
        while self.first and self._decisions and self._arrive([f"decision/{self._decisions - 1}"], 0.0):
            if time.monotonic() > give_up:
                log.warning("not all ranks have read that the run has ended")
                return
            time.sleep(POLL_S)

    def beat(self, stop: threading.Event) -> None:
        """Rank 0: gives a sign of life, and sets `stop` if any rank was asked to end."""
        self._add(ALIVE, 1)
        if self._add(ASKED_TO_END, 0):
            stop.set()

    def keep_alive(self, stop: threading.Event) -> None:
        """Rank 0: begins to `beat`, for as long as this process lives: each wait of its own ends at a deadline, and the
        others wait as long as it does."""
        threading.Thread(target=self._beat_for_ever, args=(stop,), name="sign of life", daemon=True).start()

    def _beat_for_ever(self, stop: threading.Event) -> None:
        while True:
            self.beat(stop)
            time.sleep(BEAT_S)

    def pass_on(self, stop: threading.Event) -> None:
        """Any other rank: from now on tells rank 0, which alone can end a run in order, once `stop` is set here."""
        threading.Thread(target=self._pass_on, args=(stop,), name="stop request", daemon=True).start()

    def _pass_on(self, stop: threading.Event) -> None:
        stop.wait()
        with suppress(RankLostError):  # the main thread meets it as well
            self._add(ASKED_TO_END, 1)

    # Results of every rank --------------------------------------------------------------------------------------------

    def report(self, name: str, result: bytes) -> None:
        """Leaves this rank's result for rank 0, under a name that is used once."""
        failpoints.step("report to rank 0", lambda: self._write(f"{name}/{self.rank}", result), (name, self.rank))

    def reports(self, name: str, deadline_s: float, ranks: Sequence[int] | None = None) -> list[bytes]:
        """Rank 0: returns the results of these ranks, or of all, in order.

        Raises `RankLostError`, which names the ranks without.
        """
        ranks = range(self.size) if ranks is None else ranks
        keys = [f"{name}/{rank}" for rank in ranks]
        give_up = time.monotonic() + deadline_s
        while not self._arrive(keys, min(LISTEN_S, give_up - time.monotonic())):
            self._check()
            if time.monotonic() >= give_up:
                missing = [rank for rank, key in zip(ranks, keys, strict=True) if not self._arrive([key], 0.0)]
                raise self._lost(missing, f"report on {name}", deadline_s)
        results = [self._read(key) for key in keys]
        for key in keys:
            self._delete(key)
        return results

    # Collectives ------------------------------------------------------------------------------------------------------

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Runs a block of collectives, in which all ranks take part. `what`, as a verb, is a name used once.

        Raises `RankLostError` if a collective fails: it names the ranks that do not answer.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _of_a_collective(error):
                raise
            log.error("could not %s: %s", what, error)
            self.report(f"failed to {what}", b"")
            give_up = time.monotonic() + ANSWER_S
            silent = set(range(self.size))
            while silent and time.monotonic() < give_up:
                silent = {rank for rank in silent if not self._arrive([f"failed to {what}/{rank}"], ANSWER_S / 50)}
            raise self._lost(sorted(silent), what, self.deadline_s) from error

    def sum(self, values: Tensor) -> Tensor:
        """Returns `values`, added up over all ranks in place."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    # The store --------------------------------------------------------------------------------------------------------

    def _arrive(self, keys: Sequence[str], deadline_s: float) -> bool:
        """Waits for all keys. Returns whether they came in time."""

        def look(client: Store) -> bool:
            if deadline_s >= SHORTEST_S and not client.check(list(keys)):
                with suppress(DistError):
                    client.wait(list(keys), timedelta(seconds=deadline_s))
            return bool(client.check(list(keys)))

        return self._ask(look, max(0.0, deadline_s))

    def _write(self, key: str, message: bytes) -> None:
        """Stores the pieces first and their number last, so that a message that is there is whole."""
        starts = range(0, len(message), MESSAGE_BYTES)

        def write(client: Store) -> None:
            for number, start in enumerate(starts):
                client.set(f"{key}/{number}", message[start : start + MESSAGE_BYTES])  # type: ignore[arg-type]
            client.set(key, str(len(starts)))

        self._ask(write)

    def _read(self, key: str) -> bytes:
        return self._ask(lambda client: b"".join(client.get(f"{key}/{n}") for n in range(int(client.get(key)))))

    def _delete(self, key: str) -> None:
        def delete(client: Store) -> None:
            for number in range(int(client.get(key))):
                client.delete_key(f"{key}/{number}")
            client.delete_key(key)

        self._ask(delete)

    def _add(self, key: str, amount: int) -> int:
        return self._ask(lambda client: int(client.add(key, amount)))

    def _ask(self, call: Callable[[Store], T], patience_s: float = 0.0) -> T:
        """Returns the result of a call on this thread's connection, which may wait `patience_s` for other ranks.

        Raises `RankLostError` if rank 0 has ended, or hangs: torch itself waits for its answers without a deadline, so
        another thread makes the call.
        """
        connection, result = self._connection(), Future[T]()

        def run() -> None:
            try:
                result.set_result(call(connection.open()))
            except BaseException as error:
                result.set_exception(error)

        if self.first:
            run()
        else:
            threading.Thread(target=run, name="call to rank 0", daemon=True).start()
        try:
            return result.result(patience_s + self.deadline_s)
        except TimeoutError:
            raise self._lost([0], "answer", self.deadline_s) from None
        except DistError as error:
            raise RankLostError(Problem("learner rank 0", "cannot be reached any more", RESTART_FIX)) from error

    def _connection(self) -> "_Connection":
        """Returns this thread's connection: a wait holds up every other call on the same one."""
        if not hasattr(self._connections, "own"):
            self._connections.own = _Connection(self._store)
        own: _Connection = self._connections.own
        return own

    def _lost(self, ranks: Collection[int], what: str, deadline_s: float) -> RankLostError:
        """Returns the error for ranks that did not do `what` in time; for none, all are there and a link failed."""
        who = ", ".join(map(str, ranks))
        where = f"learner rank {who}" if ranks else f"the learner's {self.size} ranks"
        problem = f"did not {what} within {deadline_s:g} s" if ranks else f"lost a connection while they had to {what}"
        self._broken = self._broken or RankLostError(Problem(where, problem, RESTART_FIX))
        return RankLostError(Problem(where, problem, RESTART_FIX))

    def _check(self) -> None:
        """Raises the error by which another thread has noticed that a rank is lost: no wait for it is of any use."""
        if self._broken is not None:
            raise RankLostError(*self._broken.problems)


class _Connection:
    """A connection to the store, opened when it is needed first."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._own: Store | None = None

    def open(self) -> Store:
        """Returns the connection. This takes a while if rank 0 cannot be reached."""
        if self._own is None:
            self._own = self._store.clone()  # type: ignore[attr-defined]
        return self._own


def _of_a_collective(error: RuntimeError) -> bool:
    """Returns whether torch raised the error because another rank was missing: gloo's errors have no class."""
    return isinstance(error, DistError) or "gloo" in str(error)
