"""The messages between ranks: each rank is a thread of this process with a connection of its own."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from learner.ranks import team as team_module
from learner.ranks.team import MESSAGE_BYTES, RankLostError, Team
from tests.waiting import wait_until

DEADLINE_S = 60.0


@pytest.fixture
def store() -> Iterator[TCPStore]:
    yield TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=DEADLINE_S), wait_for_workers=False)


def team_of(store: TCPStore, rank: int, size: int, silence_s: float = DEADLINE_S) -> Team:
    return Team(rank, size, store.clone(), deadline_s=DEADLINE_S, silence_s=silence_s)


def test_every_rank_gets_every_decision_in_order_and_none_is_kept(store: TCPStore) -> None:
    decisions = [b"", b"first", bytes(range(256)) * (MESSAGE_BYTES // 100), b"last"]
    assert len(decisions[2]) > 8 << 20
    before = store.num_keys()

    def hear(rank: int) -> list[bytes]:
        team = team_of(store, rank, 3)
        return [team.share(pytest.fail) for _ in decisions]

    with ThreadPoolExecutor(2) as threads:
        heard = [threads.submit(hear, rank) for rank in (1, 2)]
        leader = team_of(store, 0, 3)
        assert [leader.share(lambda made=made: made) for made in decisions] == decisions  # type: ignore[misc]
        assert [one.result(DEADLINE_S) for one in heard] == [decisions] * 2
        leader.settle()
    assert store.num_keys() == before


def test_a_rank_alone_needs_no_messages() -> None:
    team = Team.alone()
    assert team.first and team.share(lambda: b"decided") == b"decided"
    team.beat(threading.Event())
    team.report("files", b"1")
    assert team.reports("files", 1.0) == [b"1"]


def test_a_silent_rank_0_is_given_up(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_module, "LISTEN_S", 0.01)
    with pytest.raises(RankLostError, match=r"learner rank 0: did not decide what to do next within 0.1 s"):
        team_of(store, 1, 2, silence_s=0.1).receive()


class Clock:
    """A clock that the test moves; it counts how often it was read."""

    def __init__(self) -> None:
        self.now, self.reads = 0.0, 0

    def monotonic(self) -> float:
        self.reads += 1
        return self.now


@pytest.mark.slow
def test_a_rank_0_that_gives_signs_of_life_is_waited_for(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team_module, "LISTEN_S", 0.01)
    monkeypatch.setattr(team_module, "time", clock := Clock())
    leader, follower = team_of(store, 0, 2), team_of(store, 1, 2, silence_s=1.0)
    with ThreadPoolExecutor(1) as threads:
        heard = threads.submit(follower.receive)
        for _ in range(4):
            leader.beat(threading.Event())
            seen = clock.reads + 4
            wait_until(lambda seen=seen: clock.reads > seen or heard.done(), "a look at the sign of life")  # type: ignore[misc]
            clock.now += 0.8
        leader.send(b"go on")
        assert heard.result(DEADLINE_S) == b"go on"


def test_rank_0_ends_in_order_when_another_rank_is_asked_to(store: TCPStore) -> None:
    leader, follower = team_of(store, 0, 2), team_of(store, 1, 2)
    asked, ends = threading.Event(), threading.Event()
    follower.pass_on(asked)
    leader.beat(ends)
    assert not ends.is_set()

    def heard() -> bool:
        leader.beat(ends)
        return ends.is_set()

    asked.set()
    wait_until(heard, "the request at rank 0")


def test_results_come_in_the_order_of_ranks_while_the_main_thread_waits(store: TCPStore) -> None:
    teams = [team_of(store, rank, 3) for rank in range(3)]
    with ThreadPoolExecutor(4) as threads:
        waits = [threads.submit(team.receive) for team in teams[1:]]
        collected = threads.submit(teams[0].reports, "files", DEADLINE_S)
        for team in reversed(teams):
            thread = threading.Thread(target=team.report, args=("files", str(team.rank).encode()), daemon=True)
            thread.start()
            thread.join(DEADLINE_S)
        assert collected.result(DEADLINE_S) == [b"0", b"1", b"2"]
        teams[0].send(b"end")
        assert [wait.result(DEADLINE_S) for wait in waits] == [b"end", b"end"]


def test_ranks_whose_results_lack_are_named(store: TCPStore) -> None:
    team = team_of(store, 0, 4)
    for rank in (0, 2):
        team_of(store, rank, 4).report("checkpoint 0001/00000007", b"")
    with pytest.raises(RankLostError, match=r"rank 1, 3: did not report on checkpoint 0001/00000007 within 0.1 s"):
        team.reports("checkpoint 0001/00000007", 0.1)


@pytest.mark.slow
def test_a_failed_collective_names_the_ranks_that_do_not_answer(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_module, "ANSWER_S", 0.2)

    def train(rank: int) -> None:
        with team_of(store, rank, 3).together("train update 7"):
            raise RuntimeError("[gloo/transport/tcp/unbound_buffer.cc] Timed out waiting for recv operation")

    with ThreadPoolExecutor(2) as threads:
        for error in [threads.submit(train, rank).exception(DEADLINE_S) for rank in (0, 2)]:
            assert isinstance(error, RankLostError)
            assert "learner rank 1" in str(error) and "train update 7" in str(error)


def test_an_error_that_is_no_collectives_stays_what_it_is(store: TCPStore) -> None:
    with pytest.raises(RuntimeError, match="shapes"), team_of(store, 0, 2).together("train update 7"):
        raise RuntimeError("shapes do not match")
