"""The invitations in Redis, and the Redis users that belong to them: the only commands against `InvitationKeys`.

- A grant is handed out once, because claiming it is one RENAME, after which it is no more where it was. The machine
  that made it finds the grant again after a lost reply, since only it knows the name that it gave.
- A machine that takes the grant says so in the same transaction that reads the grant, under a key of its own. What it
  says there is not to be trusted: it changes nothing but since when the invitation counts as claimed, and by whom.
- An invitation whose record nobody can read is listed as `unreadable`, and `revoke` removes it whole.
- Redis keeps the users of invitations that nobody claimed, but their passwords are gone when the invitation expires;
  `tidy` removes them.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import redis

from echo_queue import failpoints
from echo_queue.config.model import NAME
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue.acl import guest_rules, rules
from echo_queue.queue.keys import InvitationKeys, Keys
from echo_queue.queue.replies import milliseconds
from echo_queue.records.foreign_numbers import MOST_MS, NoNumber, whole

State = Literal["open", "claimed", "expired", "revoked", "unreadable"]
MOST_HOST = 64
MOST_PEERS = 3
"""The most workers whose addresses a guest asks for."""
LOST_AT_RESTART = Problem(
    "redis.url",
    "this Redis keeps its users in no file, so the invited ones are gone once it starts again",
    "name an `aclfile` in its configuration",
)


@dataclass(frozen=True)
class Entry:
    """An invitation as the server has it. `since_ms`: when it came into that state; `host`: of who claimed it.

    The times of one that is unreadable are 0.
    """

    id: str
    name: str
    state: State
    since_ms: int
    expires_ms: int
    host: str = ""


@dataclass(frozen=True)
class Revocation:
    """The end of an invitation. `first`: it was not revoked before; `workers`: how the names of its workers begin,
    empty if nobody knows; `begun`: the run has rules, without which nobody can have leased anything.
    """

    first: bool
    workers: str
    begun: bool


def worker_user(run: str, id: str) -> str:
    """Returns the name of the Redis user of an invited worker."""
    return f"worker-{run}-{id}"


def workers_prefix(name: str, id: str) -> str:
    """Returns how the names of an invitation's workers begin; its Redis user may use no others."""
    return f"{id}-" if name == id else f"{name}-{id}-"


def guest_user(run: str, id: str) -> str:
    """Returns the name of the Redis user that may take a grant."""
    return f"guest-{run}-{id}"


class Register:
    """The invitations to one run, for whoever may administer its Redis."""

    def __init__(self, client: redis.Redis, run: str) -> None:
        self._client: Any = client
        self._run = run
        self._keys = InvitationKeys(run)

    def now_ms(self) -> int:
        """Returns the server's clock."""
        return milliseconds(self._client.time())

    def admit_users(self, id: str, name: str, guest_password: str, worker_password: str) -> None:
        """Makes both users of an invitation. Raises `ServiceError` where Redis lets nobody make users."""
        users = (
            (guest_user(self._run, id), guest_password, guest_rules(self._run, id)),
            (worker_user(self._run, id), worker_password, _worker_rules(self._run, name, id)),
        )
        try:
            for user in users:
                failpoints.step("admit user", partial(self._admit, *user))
        except redis.ResponseError as error:
            what = f"Redis does not let this user make others: {error}"
            fix = "invite as admin (docs/rights.md); some managed services let nobody run ACL SETUSER"
            raise ServiceError(Problem("redis.url", what, fix)) from None

    def _admit(self, name: str, password: str, words: str) -> None:
        digest = hashlib.sha256(password.encode()).hexdigest()
        self._client.execute_command("ACL", "SETUSER", name, "reset", "on", f"#{digest}", *words.split())

    def offer(self, id: str, name: str, grant: bytes, inviter: str, *, expires_ms: int) -> None:
        """Offers a grant until `expires_ms`, and records the key that signed it as one that may invite."""
        keys, now_ms = self._keys, self.now_ms()
        with self._client.pipeline(transaction=True) as move:
            move.sadd(keys.inviters, inviter)
            move.hset(keys.record(id), mapping={"name": name, "issued_ms": now_ms, "expires_ms": expires_ms})
            move.zadd(keys.index, {id: now_ms})
            move.set(keys.offered(id), grant, pxat=expires_ms)
            failpoints.step("offer grant", move.execute)

    def entries(self) -> list[Entry]:
        """Returns all invitations, the oldest first."""
        now_ms = self.now_ms()
        ids = [word.decode() for word in self._client.zrange(self._keys.index, 0, -1)]
        with self._client.pipeline(transaction=False) as asked:
            for id in ids:
                asked.hgetall(self._keys.record(id)).hmget(self._keys.claim(id), "claimed_ms", "host")
                asked.exists(self._keys.offered(id))
            answers = asked.execute(raise_on_error=False)
        return [
            entry_of(id, record, claim, bool(offered), now_ms)
            for id, record, claim, offered in zip(ids, answers[::3], answers[1::3], answers[2::3], strict=True)
        ]

    def revoke(self, id: str) -> Revocation:
        """Removes both users, which ends their connections, and the grant.

        Raises `ServiceError` for an invitation that never was.
        """
        keys = self._keys
        entry = next((entry for entry in self.entries() if entry.id == id), None)
        if entry is None:
            what = f"{id} is no invitation to run {self._run}"
            raise ServiceError(Problem("invitation", what, "`echo-queue invitations CONFIG` lists them"))
        self._remove_users(guest_user(self._run, id), worker_user(self._run, id))
        failpoints.step("remove grant", lambda: self._client.delete(keys.offered(id)))
        if entry.state == "unreadable":
            self._forget(id)
            first = True
        else:
            mark = partial(self._client.hsetnx, keys.record(id), "revoked_ms", self.now_ms())
            first = bool(failpoints.step("note revocation", mark))
        begun = bool(self._client.exists(Keys(self._run).rules))
        return Revocation(first, workers_prefix(entry.name, id) if entry.name else "", begun)

    def _forget(self, id: str) -> None:
        with self._client.pipeline(transaction=True) as move:
            move.delete(self._keys.record(id), self._keys.claim(id)).zrem(self._keys.index, id)
            failpoints.step("forget invitation", move.execute)

    def tidy(self) -> list[Entry]:
        """Removes the users that nobody can use any more: both of expired and revoked ones, the guest of claimed ones.

        A machine that claimed its grant may ask for it again until the invitation expires. Users that may go on get
        the rights that this release gives them. Returns all invitations as it found them, the oldest first.
        """
        entries, now_ms = self.entries(), self.now_ms()
        known = {_text(name) for name in self._client.acl_users()} if entries else set()
        for entry in entries:
            worker, guest = worker_user(self._run, entry.id), guest_user(self._run, entry.id)
            if entry.state in ("expired", "revoked") and {guest, worker} & known:
                self._remove_users(guest, worker)
            elif entry.state in ("open", "claimed"):
                self._renew_rights(known, {
                    worker: _worker_rules(self._run, entry.name, entry.id), guest: guest_rules(self._run, entry.id)
                })  # fmt: skip
            if entry.state == "claimed" and entry.expires_ms <= now_ms:
                self._remove_users(guest)
        return entries

    def _renew_rights(self, known: set[str], rights: Mapping[str, str]) -> None:
        """Gives those of these users that there are these rights; their passwords stay."""
        for user in rights.keys() & known:
            words = ("resetkeys", "clearselectors", *rights[user].split())
            failpoints.step("admit user", partial(self._client.execute_command, "ACL", "SETUSER", user, *words))

    def keep_users(self) -> Iterator[Problem]:
        """Has Redis write its users to its file. Yields a warning where it has none."""
        try:
            failpoints.step("save users", lambda: self._client.execute_command("ACL", "SAVE"))
        except redis.ResponseError:
            yield LOST_AT_RESTART

    def _remove_users(self, *names: str) -> None:
        failpoints.step("remove users", lambda: self._client.execute_command("ACL", "DELUSER", *names))


Record = Mapping[bytes, bytes]
Claim = Sequence[bytes | None]


def entry_of(id: str, record: Record | Exception, claim: Claim | Exception, offered: bool, now_ms: int) -> Entry:
    """Judges a record. `claim`: since when and by whom it is claimed, as far as somebody says so.

    `offered`: whether its grant is still there to be claimed. An exception says that the key holds something else.
    """
    if isinstance(record, Exception):
        return Entry(id, "", "unreadable", 0, 0)
    name = _text(record.get(b"name", b""))
    named = name if NAME.fullmatch(name) else ""
    try:
        issued_ms, expires_ms = (whole(record.get(field, b""), MOST_MS) for field in (b"issued_ms", b"expires_ms"))
        revoked_ms = whole(record[b"revoked_ms"], MOST_MS) if b"revoked_ms" in record else None
    except NoNumber:
        return Entry(id, named, "unreadable", 0, 0)
    if not named:
        return Entry(id, "", "unreadable", 0, 0)
    claimed_ms, host = _claim_of(claim, issued_ms, now_ms)
    state: State
    if revoked_ms is not None:
        state, since_ms = "revoked", revoked_ms
    elif claimed_ms is not None:
        state, since_ms = "claimed", claimed_ms
    elif now_ms >= expires_ms:
        state, since_ms = "expired", expires_ms
    elif offered:
        state, since_ms = "open", issued_ms
    else:  # the machine that took the grant did not get as far as reading it
        state, since_ms = "claimed", issued_ms
    return Entry(id, named, state, since_ms, expires_ms, host)


def _claim_of(claim: Claim | Exception, issued_ms: int, now_ms: int) -> tuple[int | None, str]:
    """Returns since when the invitation is claimed, None if nobody says so, and by whom.

    A time that cannot be is that of its issue.
    """
    if isinstance(claim, Exception):
        return issued_ms, ""
    since, host = claim
    shown = re.sub(r"[^\w.-]", "?", _text(host or b""), flags=re.ASCII)[:MOST_HOST]
    if since is None:
        return None, shown
    try:
        claimed_ms = whole(since, now_ms)
    except NoNumber:
        claimed_ms = 0
    return max(issued_ms, claimed_ms), shown


class Guest:
    """One invitation, for the machine that has its token. `client` is a connection as the guest."""

    def __init__(self, client: redis.Redis, run: str, id: str) -> None:
        self._client: Any = client
        self._run = run
        self._id = id
        self._keys = InvitationKeys(run)

    def now_ms(self) -> int:
        """Returns the server's clock."""
        return milliseconds(self._client.time())

    def may_invite(self, public_key: str) -> bool:
        """Returns whether the server knows this key as one that signs invitations to the run."""
        return bool(self._client.sismember(self._keys.inviters, public_key))

    def own_host(self) -> str:
        """Returns the address of this machine as the server sees it."""
        return str(self._client.client_info()["addr"]).rpartition(":")[0].strip("[]")

    def peers(self) -> list[str]:
        """Returns the addresses (`host:port`) of some workers that can be reached by others."""
        keys = Keys(self._run)
        names = [_text(name) for name in self._client.zrange(keys.workers, 0, -1)]
        found = (self._client.hget(keys.peer(name), "address") for name in reversed(names))
        places = (_text(address) for address in found if address)
        return [place for place, _ in zip(places, range(MOST_PEERS), strict=False)]

    def claim(self, nonce: str, host: str) -> bytes | None:
        """Takes the grant, under a name with `nonce` in it, and reads it; None if it is not there (any more).

        It may be called again, with the same nonce, after a lost reply.
        """
        keys = self._keys
        mine = keys.claimed(self._id, nonce)
        if self._client.get(mine) is None:
            try:
                failpoints.step("claim grant", lambda: self._client.rename(keys.offered(self._id), mine))
            except redis.ResponseError as error:
                if "no such key" not in str(error):
                    raise
                return None
        now_ms = self.now_ms()
        with self._client.pipeline(transaction=True) as move:
            move.hsetnx(keys.claim(self._id), "claimed_ms", now_ms).hsetnx(keys.claim(self._id), "host", host)
            move.get(mine)
            grant: bytes | None = failpoints.step("read grant", move.execute)[-1]
        return grant


def _worker_rules(run: str, name: str, id: str) -> str:
    return rules("worker", run, CELERY_PREFIX.format(run=run), workers=f"{workers_prefix(name, id)}*")


def _text(word: bytes | str) -> str:
    return word if isinstance(word, str) else word.decode("utf-8", "replace")
