"""Redis itself hands a grant out once, and lets whoever has a token do nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from echo_queue.fleet.invitation.register import Guest, Register, entry_of, guest_user, worker_user
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue.keys import InvitationKeys, Keys
from tests.waiting import wait_until

ID, GRANT, KEY = "0123456789ab", b"the grant", "ab" * 32
FAR_MS = 10 * 60_000


@pytest.fixture
def register(redis_client: "redis.Redis", run_name: str) -> Iterator[Register]:
    register = Register(redis_client, run_name)
    yield register
    redis_client.execute_command("ACL", "DELUSER", guest_user(run_name, ID), worker_user(run_name, ID))


@pytest.fixture
def client(redis_server: RedisServer, register: Register, run_name: str) -> Iterator[Any]:
    """The connection of a guest, whose invitation is open."""
    register.admit_users(ID, "gpu", "guest's", "worker's")
    register.offer(ID, "gpu", GRANT, KEY, expires_ms=register.now_ms() + FAR_MS)
    with connected(redis_server, guest_user(run_name, ID), "guest's") as guest:
        yield guest


def connected(server: RedisServer, username: str, password: str) -> "redis.Redis":
    return redis.Redis(port=server.port, username=username, password=password, protocol=2, retry=Retry(NoBackoff(), 0))


def test_the_first_to_claim_a_grant_has_it_also_after_a_lost_reply_and_no_other_does(
    client: Any, register: Register, run_name: str
) -> None:
    guest = Guest(client, run_name, ID)
    assert (guest.may_invite(KEY), guest.may_invite("cd" * 32)) == (True, False)
    assert guest.own_host() == "127.0.0.1"
    assert register.entries()[0].state == "open"
    assert guest.claim("mine", "host\x1b[2J") == GRANT
    since = register.entries()[0]
    assert (since.state, since.host) == ("claimed", "host??2J")
    assert guest.claim("another's", "elsewhere") is None
    assert guest.claim("mine", "elsewhere") == GRANT
    assert register.entries()[0] == since


def test_a_token_opens_nothing_by_hand_but_one_grant(client: Any, run_name: str) -> None:
    keys, queue = InvitationKeys(run_name), Keys(run_name)
    mine = keys.claimed(ID, "mine")
    for words in (
        ("GET", keys.offered(ID)),
        ("COPY", keys.offered(ID), mine),
        ("RENAME", keys.offered("f" * 12), mine),
        ("RENAME", keys.offered(ID), queue.state),
        ("HGETALL", keys.record(ID)),
        ("HSET", keys.record(ID), "revoked_ms", "1"),
        ("HSETNX", keys.record(ID), "revoked_ms", "1"),
        ("HSETNX", keys.claim("f" * 12), "claimed_ms", "1"),
        ("HGETALL", keys.claim(ID)),
        ("SADD", keys.inviters, KEY),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("HGETALL", queue.run_keys),
        ("HSET", queue.peer("w"), "address", "here"),
        ("FCALL", "eq1_lease", "1", queue.prefix, "w", "0", "0", "1"),
        ("ACL", "LIST"),
        ("CLIENT", "LIST"),
    ):
        with pytest.raises(NoPermissionError):
            client.execute_command(*words)
    assert client.rename(keys.offered(ID), mine)
    assert client.get(mine) == GRANT


def test_revoking_ends_connections_at_once(
    client: Any, redis_server: RedisServer, register: Register, run_name: str
) -> None:
    with connected(redis_server, worker_user(run_name, ID), "worker's") as worker:
        assert worker.ping()
        assert (register.revoke(ID).first, register.revoke(ID).first) == (True, False)
        with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
            worker.ping()
        with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
            client.ping()
    assert register.entries()[0].state == "revoked"


def test_what_nobody_claimed_in_time_is_gone_with_its_users(
    client: Any, register: Register, redis_client: "redis.Redis", run_name: str
) -> None:
    register.offer(ID, "gpu", GRANT, KEY, expires_ms=register.now_ms() + 50)
    wait_until(lambda: register.entries()[0].state == "expired", "the end of an invitation")
    wait_until(lambda: Guest(client, run_name, ID).claim("mine", "h") is None, "its grant to be gone")
    register.tidy()
    assert ID not in " ".join(redis_client.acl_users())


def test_tidying_gives_invited_workers_the_rights_of_this_release(
    client: Any, register: Register, redis_server: RedisServer, redis_client: "redis.Redis", run_name: str
) -> None:
    queue, older = Keys(run_name), ("resetkeys", "clearselectors", "~old", "-@all", "+get")
    redis_client.execute_command("ACL", "SETUSER", worker_user(run_name, ID), *older)
    with connected(redis_server, worker_user(run_name, ID), "worker's") as worker:
        with pytest.raises(NoPermissionError):
            worker.hget(queue.state, "v")
        register.tidy()
        assert worker.hget(queue.state, "v") is None
        with pytest.raises(NoPermissionError):
            worker.get("old")


def test_a_server_without_a_file_for_its_users_says_that_they_will_be_forgotten(register: Register) -> None:
    assert list(register.keep_users()) == []


@pytest.mark.parametrize("words", ["9" * 5000, "9" * 18, "\u0661", "-1", "1e3", b"\xff", ""])
def test_whatever_a_tokens_holder_writes_of_its_claim_the_list_goes_on(
    client: Any, register: Register, run_name: str, words: str | bytes
) -> None:
    for field in ("claimed_ms", "host", "revoked_ms", "name", "expires_ms"):
        client.hsetnx(InvitationKeys(run_name).claim(ID), field, words)
    register.tidy()
    (entry,) = register.entries()
    assert (entry.state, entry.name) == ("claimed", "gpu")
    assert register.revoke(ID).first
    assert register.entries()[0].state == "revoked"


@pytest.mark.parametrize("field", ["name", "issued_ms", "expires_ms", "revoked_ms", None])
def test_a_record_that_nobody_can_read_spoils_no_other_and_revoking_removes_it(
    client: Any, register: Register, redis_client: "redis.Redis", run_name: str, field: str | None
) -> None:
    keys, other = InvitationKeys(run_name), "ab" * 6
    register.offer(other, "other", GRANT, KEY, expires_ms=register.now_ms() + FAR_MS)
    if field is None:
        redis_client.set(keys.record(ID), "no hash")
    else:
        redis_client.hset(keys.record(ID), field, "9" * 5000)
    register.tidy()
    assert {entry.id: entry.state for entry in register.entries()} == {ID: "unreadable", other: "open"}
    assert register.revoke(ID).first
    assert [entry.id for entry in register.entries()] == [other]
    assert ID not in " ".join(redis_client.acl_users())


def test_tidying_takes_from_older_guests_what_this_release_does_not_give_them(
    client: Any, register: Register, redis_client: "redis.Redis", run_name: str
) -> None:
    keys = InvitationKeys(run_name)
    redis_client.execute_command("ACL", "SETUSER", guest_user(run_name, ID), f"(%W~{keys.record(ID)} +hsetnx)")
    assert client.hsetnx(keys.record(ID), "claimed_ms", "9" * 5000)
    register.tidy()
    assert register.entries()[0].state == "open"
    with pytest.raises(NoPermissionError):
        client.hsetnx(keys.record(ID), "revoked_ms", "1")
    assert Guest(client, run_name, ID).claim("mine", "host") == GRANT


@pytest.mark.parametrize(
    ("record", "claim", "offered", "state"),
    [
        ({}, (None, None), True, "open"),
        ({}, (None, None), False, "claimed"),
        ({}, (b"20", None), False, "claimed"),
        ({b"revoked_ms": b"30"}, (b"20", None), False, "revoked"),
        ({b"expires_ms": b"40"}, (None, None), False, "expired"),
        ({b"expires_ms": b"40"}, (b"no number", None), False, "claimed"),
        ({b"name": b"\xff"}, (None, None), True, "unreadable"),
    ],
)
def test_each_record_has_one_state(
    record: dict[bytes, bytes], claim: tuple[bytes | None, bytes | None], offered: bool, state: str
) -> None:
    words = {b"name": b"n", b"issued_ms": b"10", b"expires_ms": b"100", **record}
    assert entry_of(ID, words, claim, offered, 50).state == state
