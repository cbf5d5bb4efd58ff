"""Ranks save and load one checkpoint together: any number loads what any other number saved, and all agree on it.

A rank that fails is named with its cause, and one that is silent is named at a deadline; nothing is half saved.
"""

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from echo_queue import failpoints
from echo_queue.config import Learner
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import DeadlineError, EchoQueueError, ServiceError
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.records import Version
from learner.model.loading import prepare
from learner.model.pieces import Piece
from learner.model.policy import Policy
from learner.ranks.team import RankLostError, Team
from learner.recovery import checkpoint
from learner.recovery.background_saver import BackgroundSaver
from learner.recovery.manifest import CheckpointManifest, History
from tests.learner.rank_processes import RankFailedError, RankProcesses, run_ranks
from tests.learner.recovery.one_process import Read, Shapes
from tests.learner.recovery.rank_threads import DEADLINE_S, run_all, teams
from tests.learner.states import put_together, state_of
from tests.learner.synthetic import tiny_model
from tests.waiting import wait_until

SIZES = range(1, 5)


def state(number: int) -> dict[str, torch.Tensor]:
    """A state of version `number`: tensors of many rows and of few, a scalar, and a random state."""
    draw = torch.Generator().manual_seed(number)
    return {
        "table": torch.randn(3000, 33, generator=draw),
        "vector": torch.randn(41, generator=draw),
        "two rows": torch.randn(2, 3, 4, generator=draw),
        "step": torch.tensor(float(number)),
        "rng": draw.get_state(),
    }


def pieces_of(tensors: dict[str, torch.Tensor], rank: int, size: int, seed: int) -> list[Piece]:
    """Returns a rank's rows: each tensor is cut anywhere, and rank 0 alone has the scalar and the random state.

    No rank has empty pieces, and rank 1 has no rows at all.
    """
    draw = random.Random(seed)
    found = []
    for name, tensor in tensors.items():
        if name in ("step", "rng"):
            found += [Piece(name, tuple(tensor.shape), 0, tensor)] if rank == 0 else []
            continue
        cuts = sorted(draw.randint(0, len(tensor)) for _ in range(size - 1))
        ends = [0, *cuts, len(tensor)]
        if size > 1:
            ends[1] = ends[2]
        first, end = list(pairwise(ends))[rank]
        if end > first:
            found.append(Piece(name, tuple(tensor.shape), first, tensor[first:end].clone()))
    return found


class HeldRows:
    """Stands in for the policy of one rank, which holds the rows that `pieces_of` gives it."""

    def __init__(self, team: Team, seed: int = 0) -> None:
        tensors = {name: torch.full_like(tensor, 7) for name, tensor in state(0).items()}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.pieces = [
            *(piece for piece in pieces_of(tensors, team.rank, team.size, seed) if piece.name not in ("step", "rng")),
            *(Piece(name, self._shapes[name], 0, tensors[name]) for name in ("step", "rng")),
        ]

    def restore(self, stored: Shapes, read: Read) -> None:
        assert stored == self._shapes
        read(self.pieces)

    def holds(self, number: int) -> bool:
        """Returns whether all rows are those of version `number`."""
        tensors = state(number)
        return all(torch.equal(piece.tensor, rows(tensors[piece.name], piece)) for piece in self.pieces)


def rows(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    return tensor[piece.first : piece.first + piece.rows] if piece.shape else tensor


def save(
    team: Team,
    store: ObjectStore,
    number: int,
    parent: CheckpointManifest | None = None,
    pieces: Sequence[Piece] | None = None,
) -> CheckpointManifest | None:
    """Saves this rank's part of version `number`, as the loop of a rank does."""
    return begun(team, store, number, parent, DEADLINE_S, pieces=pieces).wait()


def save_until_it_fails(
    team: Team, store: ObjectStore, number: int, parent: CheckpointManifest | None, deadline_s: float
) -> None:
    """Saves as `save` does. Raises the error that the loop of rank 0 hears while it trains."""
    saver = begun(team, store, number, parent, deadline_s)
    wait_until(lambda: saver.finished() is not None, "a checkpoint")


def begun(
    team: Team,
    store: ObjectStore,
    number: int,
    parent: CheckpointManifest | None,
    deadline_s: float,
    *,
    pieces: Sequence[Piece] | None = None,
) -> BackgroundSaver:
    saver = BackgroundSaver(store, team, deadline_s)
    if pieces is None:
        pieces = pieces_of(state(number), team.rank, team.size, seed=team.size)
    history = History((f"a/0/{number}",), parent.name if parent else None, 1.0)
    saver.begin(Version(1, number), pieces, history)
    return saver


def saved_by(
    size: int, store: ObjectStore, number: int, parent: CheckpointManifest | None = None
) -> CheckpointManifest:
    first, *others = run_all(teams(size), lambda team: save(team, store, number, parent))
    assert isinstance(first, CheckpointManifest) and others == [None] * (size - 1), (first, others)
    return first


def load(ranks: Sequence[Team], store: ObjectStore) -> tuple[list[Any], list[HeldRows]]:
    held = [HeldRows(team, seed=100 + team.size) for team in ranks]
    return run_all(list(ranks), lambda team: checkpoint.restore(store, team, held[team.rank].restore)), held


@pytest.mark.parametrize("savers", SIZES)
def test_any_number_of_ranks_loads_what_any_other_number_saved(store: ObjectStore, savers: int) -> None:
    manifest = saved_by(savers, store, 3)
    assert manifest.trained == ("a/0/3",)
    for loaders in SIZES:
        found, held = load(teams(loaders), store)
        assert found == [manifest] * loaders
        assert all(each.holds(3) for each in held), loaders


def test_a_rank_reads_only_the_files_that_hold_its_rows(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's scalars and random state, which all ranks read, lie in a file without its large tensors."""
    manifest = saved_by(3, store, 1)
    held = HeldRows(teams(3)[1])  # no rows of its own
    shared = [file for file in manifest.files if {"step", "rng"} & {each.name for each in file.rows}]
    assert len(shared) == 1 and "table" not in {each.name for each in shared[0].rows}
    monkeypatch.setattr(failpoints, "observer", seen := Seen("get checkpoints"))
    assert checkpoint.restore(store, Team.alone(), held.restore) == manifest
    monkeypatch.setattr(failpoints, "observer", None)
    assert [key.rpartition("/")[2] for key in seen.about] == ["manifest.json", shared[0].name]


class Seen:
    """An observer that keeps what each step of one name was about."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.about: list[str] = []

    def before(self, step: str, about: object) -> None:
        if step.startswith(self._step):
            self.about.append(str(about))

    def after(self, step: str, about: object, answer: object) -> None:
        pass


def refused(server: S3Server, store: ObjectStore) -> ObjectStore:
    """The same store for a rank whose keys are wrong."""
    endpoint = replace(server.endpoint("tests"), secret_key="x" * 40, put_once=True)
    return ObjectStore(endpoint, store.prefix.removesuffix("/"))


def test_a_rank_whose_upload_fails_is_named_with_the_cause(store: ObjectStore, s3_server: S3Server) -> None:
    first = saved_by(2, store, 1)
    other = refused(s3_server, store)
    ranks = teams(3)
    outcomes = run_all(ranks, lambda team: save(team, other if team.rank == 2 else store, 2, first))
    decides, writes, fails = outcomes
    assert isinstance(fails, ServiceError) and "our keys are refused" in str(fails)
    assert isinstance(decides, EchoQueueError)
    assert "learner rank 2: could not save its part of checkpoint 0001/00000002: store.url: " in str(decides)
    assert decides.problems[0].fix == fails.problems[0].fix and "our keys are refused" in str(decides)
    assert writes is None, "its own part is stored"
    found, held = load(teams(1), store)
    assert found == [first] and held[0].holds(1)


def test_a_rank_that_does_not_report_is_named_at_the_deadline(store: ObjectStore) -> None:
    first = saved_by(3, store, 1)
    decides, _, writes = teams(3)
    assert save(writes, store, 2, first) is None
    with pytest.raises(RankLostError, match=r"rank 1: did not report on checkpoint 0001/00000002 within 0\.5 s"):
        save_until_it_fails(decides, store, 2, first, 0.5)
    assert load(teams(2), store)[0] == [first, first]


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_damage_that_one_rank_meets_sends_all_ranks_to_the_checkpoint_before(
    store: ObjectStore, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    ranks = teams(3, deadline_s=5.0)
    first = saved_by(3, store, 1)
    second = saved_by(3, store, 2, first)
    last = second.keys[-1]  # rows of the last rank, of which ranks 0 and 1 read none
    if harm == "gone":
        store.delete([last])
    else:
        store.put(last, bytes(len(store.get(last))))
    held = [HeldRows(team, seed=3) for team in ranks]
    with caplog.at_level(logging.WARNING):
        found = run_all(ranks, lambda team: checkpoint.restore(store, team, held[team.rank].restore))
    assert found == [first] * 3 and all(each.holds(1) for each in held)
    passed, lacking = (record.getMessage() for record in caplog.records)
    assert passed.startswith("checkpoint 0001/00000002 cannot be used (rank 2: ") and "rank 1" not in passed
    assert lacking == "these weights lack what 0001/00000002 trained after 0001/00000001"


def test_all_ranks_hear_that_there_is_no_checkpoint_or_that_none_is_whole(store: ObjectStore) -> None:
    assert load(teams(3), store)[0] == [None] * 3
    for number in (1, 2):
        store.delete(saved_by(2, store, number).keys[-1:])
    for error in load(teams(3), store)[0]:
        assert isinstance(error, ServiceError)
        assert "no checkpoint is whole: 0001/00000002, 0001/00000001" in str(error)


def test_a_rank_that_cannot_reach_the_store_ends_all_and_no_checkpoint_is_passed_over(
    store: ObjectStore, s3_server: S3Server
) -> None:
    saved_by(3, store, 1)
    other, ranks = refused(s3_server, store), teams(3)
    held = [HeldRows(team) for team in ranks]
    outcomes = run_all(
        ranks,
        lambda team: checkpoint.restore(other if team.rank == 1 else store, team, held[team.rank].restore),
    )
    assert isinstance(outcomes[1], ServiceError)
    for rank in (0, 2):
        assert isinstance(outcomes[rank], EchoQueueError)
        assert "learner rank 1: could not load its part of checkpoint 0001/00000001: store" in str(outcomes[rank])


def test_a_policy_of_another_model_ends_its_rank_and_is_named(store: ObjectStore) -> None:
    saved_by(2, store, 1)
    ranks = teams(2)
    held = [HeldRows(team) for team in ranks]
    held[1]._shapes["table"] = (1, 1)
    decides, other = run_all(ranks, lambda team: checkpoint.restore(store, team, held[team.rank].restore))
    assert isinstance(other, AssertionError)
    assert isinstance(decides, EchoQueueError)
    assert "learner rank 1: could not load its part of checkpoint 0001/00000001: AssertionError" in str(decides)


def test_a_rank_that_is_silent_while_all_load_is_named(store: ObjectStore) -> None:
    saved_by(2, store, 1)
    ranks = teams(2, deadline_s=0.5)
    hasty = ObjectStore(store.endpoint, store.prefix.removesuffix("/"), deadline_s=0.5)
    (decides,) = run_all(ranks[:1], lambda team: checkpoint.restore(hasty, team, HeldRows(team).restore))
    assert isinstance(decides, RankLostError)
    assert "learner rank 1: did not report on loading checkpoint 0001/00000001 within 1 s" in str(decides)


def policy_of(team: Team) -> Policy:
    """A policy whose weights are not those that the tests save."""
    return Policy(prepare(tiny_model(seed=1 + team.size)), Learner(), torch.float32, team)


def save_trained(team: Team, endpoint: StoreEndpoint, run: str) -> list[Piece]:
    """Takes a step, so that there are moments, and saves version 1."""
    policy = policy_of(team)
    for master in policy.masters.values():
        master.grad = master.detach().clone()
    policy.clip_gradient()
    policy.step(1e-2)
    save(team, ObjectStore(endpoint, run), 1, pieces=policy.pieces())
    return policy.pieces()


def save_again(team: Team, endpoint: StoreEndpoint, run: str) -> list[Piece]:
    """Loads what there is, and saves it as version 2."""
    store, policy = ObjectStore(endpoint, run), policy_of(team)
    manifest = checkpoint.restore(store, team, policy.restore)
    save(team, store, 2, manifest, pieces=policy.pieces())
    return policy.pieces()


@pytest.mark.slow
def test_a_policy_of_three_ranks_is_continued_by_two_and_then_by_one(store: ObjectStore, s3_server: S3Server) -> None:
    where = (s3_server.endpoint("tests"), store.prefix.removesuffix("/"))
    saved, again = (
        put_together(piece for pieces in run_ranks(size, action, *where) for piece in pieces)
        for size, action in ((3, save_trained), (2, save_again))
    )
    with torch.random.fork_rng():
        policy = policy_of(Team.alone())
        manifest = checkpoint.restore(store, Team.alone(), policy.restore)
        alone = state_of(policy)
    assert manifest is not None and (manifest.version, manifest.parent) == (2, "0001/00000001")
    assert any(name.startswith("exp_avg_sq/") for name in saved) and "rng" in saved
    for loaded in (again, alone):
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


def die_while_saving(team: Team, endpoint: StoreEndpoint, run: str) -> str:
    """Saves version 1; then rank 2 dies between its upload and its report, and rank 0 before it puts a manifest."""
    store = ObjectStore(endpoint, run)
    first = save(team, store, 1)
    if team.rank == 2:
        failpoints.observer = failpoints.CrashPoint("put checkpoints")
    if team.rank > 0:
        save(team, store, 2, first)
        heard = team.receive().decode()
        store.put("heard", b"")
    else:
        with pytest.raises(RankLostError) as lost:
            save_until_it_fails(team, store, 2, first, 2.0)
        team.send((heard := str(lost.value)).encode())
        wait_until(lambda: store.exists("heard"), "rank 1 to hear of it")  # by rank 0's own store of messages
        failpoints.observer = failpoints.CrashPoint("report to rank 0")
    with suppress(RankLostError, DeadlineError):  # of a rank that has not reported, or not begun, when rank 0 dies
        save(team, store, 3, first)
    return heard


@pytest.mark.slow
def test_ranks_that_are_killed_while_they_save_leave_the_checkpoint_before(
    store: ObjectStore, s3_server: S3Server
) -> None:
    run = store.prefix.removesuffix("/")
    with RankProcesses(3, die_while_saving, s3_server.endpoint("tests"), run) as ranks:
        heard, *killed = (ranks.outcome(rank) for rank in (1, 2, 0))
    assert "learner rank 2: did not report on checkpoint 0001/00000002 within 2 s" in heard
    for rank, error in zip((2, 0), killed, strict=True):
        assert isinstance(error, RankFailedError)
        assert f"rank {rank} ended with exit code {failpoints.CRASHED}" in str(error)
    written = {stored.key.rpartition("/")[0] for stored in store.list("checkpoints/")}
    assert written == {f"checkpoints/0001/0000000{number}" for number in (1, 2, 3)}, "parts of all three are there"
    for size in (1, 2):
        found, held = load(teams(size), store)
        assert [each.version for each in found] == [1] * size and all(each.holds(1) for each in held)
