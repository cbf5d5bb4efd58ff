"""Redis itself hands a grant out once, and lets whoever has a token do nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from echo_queue.fleet.invitation.register import Guest, Register, entry_of, guest_user, worker_user
from echo_queue.queue.keys import InvitationKeys, Keys
from echo_queue.services.redis_server import RedisServer
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
        ("HSETNX", keys.record("f" * 12), "revoked_ms", "1"),
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


@pytest.mark.parametrize(
    ("record", "offered", "state"),
    [
        ({}, True, "open"),
        ({}, False, "claimed"),
        ({"claimed_ms": "20"}, False, "claimed"),
        ({"claimed_ms": "20", "revoked_ms": "30"}, False, "revoked"),
        ({"expires_ms": "40"}, False, "expired"),
        ({"expires_ms": "40", "claimed_ms": "no number"}, False, "claimed"),
    ],
)
def test_each_record_has_one_state(record: dict[str, str], offered: bool, state: str) -> None:
    entry = entry_of(ID, {"name": "n", "issued_ms": "10", "expires_ms": "100", **record}, offered, 50)
    assert entry.state == state
