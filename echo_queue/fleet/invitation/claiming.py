"""The visit of an invited machine to Redis as a guest, and every answer that ends it in one sentence.

Before the guest's password is sent, TLS has shown that the server has a certificate of the authority in the token.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import redis

from echo_queue.connections.connect import redis_client
from echo_queue.connections.endpoints import RedisEndpoint
from echo_queue.connections.redis_errors import explain
from echo_queue.errors import Problem, ServiceError
from echo_queue.fleet.invitation.register import Guest
from echo_queue.fleet.invitation.settings import TLS_FIX, code_named, foreign, is_private, judges_named
from echo_queue.fleet.invitation.token import ANOTHER, Grant, Invitation, InvitationError, SignedToken

TRUST_FIX = "add --inviter KEY, with the key that `echo-queue invite` printed beside the token"


def refuse_unsafe(token: SignedToken, inviter: str) -> None:
    """Raises `InvitationError` for a token that asks for what no token may, whoever signed it.

    `inviter`: the key that this machine was told to trust; without one, no code is run that the token chooses.
    """
    invitation = token.invitation
    if keys := tuple(foreign(invitation.settings)):
        raise _refused(f"sets {', '.join(keys)}, which is this machine's own affair", "do not use it")
    if not is_private(invitation.redis_url, bool(invitation.authority)):
        raise _refused(f"names {invitation.redis_url}, which is not encrypted", TLS_FIX)
    if not inviter and (code := code_named(invitation.settings)):
        what = f"would run {code} here, and this machine was not told whom to trust"
        raise _refused(what, TRUST_FIX)
    if not inviter and (judges := judges_named(invitation.settings)):
        what = f"would send answers and this machine's key of judges to {judges}, and it was not told whom to trust"
        raise _refused(what, TRUST_FIX)


def refuse_own_keys(grant: Grant, inviter: str) -> None:
    """Raises `InvitationError` for a grant without keys of the store, unless its signer is known to be trusted.

    The worker would then sign requests to the token's store with whatever keys this machine has for others.
    """
    if grant.access_key is None and not inviter:
        what = "brings no keys of the store, so this machine's own would be used, and it was not told whom to trust"
        raise _refused(what, TRUST_FIX)


@contextmanager
def visiting(token: SignedToken, authority: Path | None) -> Iterator[Guest]:
    """Gives a connection as the guest of this invitation, once Redis has said that its signer may invite.

    `authority`: the file with the token's certificates. Raises `InvitationError`, also for an invitation that is over,
    or `ServiceError` where Redis does not answer.
    """
    invitation = token.invitation
    endpoint = RedisEndpoint(invitation.redis_url, invitation.guest, invitation.password, authority)
    try:
        with redis_client(endpoint) as client:
            guest = Guest(client, invitation.run, invitation.id)
            if not guest.may_invite(token.public_key):
                what = f"is signed by the key {token.public_key[:16]}…, which may not invite to run {invitation.run}"
                raise _refused(what, "do not use it, and find out who sent it")
            if guest.now_ms() >= invitation.expires_ms:
                raise _expired(invitation)
            yield guest
    except redis.AuthenticationError:
        if time.time() * 1000 >= invitation.expires_ms:
            raise _expired(invitation) from None
        raise revoked(invitation) from None
    except redis.RedisError as error:
        if "certificate" in str(error).lower():
            what = (
                f"names {invitation.redis_url}, and the server there has no certificate of the invitation's authority"
            )
            fix = f"do not go on, somebody may be in between; {ANOTHER}"
            raise _refused(f"{what} ({error})", fix) from None
        raise ServiceError(explain(error, invitation.redis_url)) from None


def claim(guest: Guest, invitation: Invitation, nonce: str, host: str) -> bytes:
    """Returns the envelope of the grant. Raises `InvitationError` if another machine has it."""
    grant = guest.claim(nonce, host)
    if grant is None:
        fix = f"if none of yours was it, have it revoked at once; each machine needs one of its own: {ANOTHER}"
        raise _refused("was used already, by another machine", fix)
    return grant


def revoked(invitation: Invitation) -> InvitationError:
    """Returns the error for an invitation whose users Redis does not know any more."""
    return _refused(f"{invitation.id} was revoked: run {invitation.run} refuses its user", ANOTHER)


def _expired(invitation: Invitation) -> InvitationError:
    end = datetime.fromtimestamp(invitation.expires_ms / 1000, UTC)
    return _refused(f"{invitation.id} expired at {end:%Y-%m-%d %H:%M} UTC", ANOTHER)


def _refused(what: str, fix: str) -> InvitationError:
    return InvitationError(Problem("invitation", what, fix))
