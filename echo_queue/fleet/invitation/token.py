"""The two signed documents of an invitation: the token, which a person carries to a machine, and the grant.

- A token says where the run is, by which authority Redis is known there, and which settings a worker needs. Its
  password opens nothing but the grant, which Redis hands out once; the worker's own secrets are in the grant alone.
- Both are signed with the inviter's Ed25519 key. Nothing in a document is looked at before its signature is verified.
- The token carries the public key as well. So a signature alone says that a token is whole, not whose it is: that is
  known once Redis has confirmed the key, or from the start where the key was given apart from the token.
"""

import base64
import binascii
import re
import zlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from echo_queue.config.model import Address, Name
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.weights.manifest import canonical
from echo_queue.weights.signatures import Forged, SignatureVerifier, Signer

TOKEN_DOMAIN = b"echo-queue invitation 1\0"
GRANT_DOMAIN = b"echo-queue grant 1\0"
PREFIX = "eqi1"
MOST_CHARACTERS = 1 << 16
MOST_BYTES = 1 << 18
"""The most bytes of a token's document, which is compressed."""
ANOTHER = "ask whoever invited this machine for another invitation (`echo-queue invite`)"

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
Word = Annotated[str, Field(min_length=1, max_length=512)]


class InvitationError(EchoQueueError):
    """The invitation is not one to trust, or not one that this machine can use any more."""


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Grant(Document):
    """The answer to an invitation: the secrets of its worker. Without store keys, it needs its own."""

    id: Id
    username: Word
    password: Word
    access_key: Word | None = None
    secret_key: Word | None = None


class Invitation(Document):
    """The content of a token."""

    format: Literal[1] = 1
    id: Id
    name: Name
    run: Name
    redis_url: Address
    authority: str = ""
    """Certificates in PEM, one of which must have issued that of Redis; empty: any that the machine trusts."""
    guest: Word
    """The Redis user that may take the grant."""
    password: Word
    expires_ms: int
    """The end of the invitation, by the clock of Redis."""
    model_bytes: int = 0
    """The size of the model in the store; 0 if it is not known."""
    settings: dict[str, dict[str, Any] | list[dict[str, Any]]] = {}
    """The run's settings that its workers share, by section; of a listed section (`[[…]]`) those of each."""


@dataclass(frozen=True)
class SignedToken:
    """An invitation whose signature is that of `public_key` (64 hexadecimal digits)."""

    invitation: Invitation
    public_key: str

    def open_grant(self, envelope: bytes) -> Grant:
        """Opens the grant of this invitation. Raises `InvitationError` for any other document."""
        try:
            body = SignatureVerifier(self.public_key, GRANT_DOMAIN).open(envelope, "grant")
        except Forged as error:
            raise _wrong(f"has a grant that {error.problems[0].what}") from None
        grant = _parsed(Grant, body)
        if grant.id != self.invitation.id:
            raise _wrong("has the grant of another one")
        return grant


def write_token(invitation: Invitation, signer: Signer) -> str:
    """Returns the token, one line of letters, digits, `-`, `_` and `.`. The signer's domain must be `TOKEN_DOMAIN`."""
    envelope = signer.sign(canonical(invitation.model_dump(mode="json")))
    return f"{PREFIX}.{signer.public_key}.{base64.urlsafe_b64encode(zlib.compress(envelope, 9)).decode().rstrip('=')}"


def write_grant(grant: Grant, seed: bytes) -> bytes:
    """Returns the envelope of a grant, signed with the inviter's key."""
    return Signer(seed, GRANT_DOMAIN).sign(canonical(grant.model_dump(mode="json")))


def read_token(text: str, inviter: str = "") -> SignedToken:
    """Reads a token and verifies its signature. Raises `InvitationError`.

    `inviter`: the public key that must have signed it, if the machine was told one.
    """
    words = re.fullmatch(rf"{PREFIX}\.([0-9a-f]{{64}})\.([A-Za-z0-9_-]+)", text.strip())
    if words is None or len(text) > MOST_CHARACTERS:
        raise _wrong(f"is no token: a token begins with {PREFIX}. and is one line", "paste the whole line")
    public_key = words[1]
    if inviter not in ("", public_key):
        what = f"is signed by the key {public_key[:16]}…, not by {inviter[:16]}…, which this machine was told to trust"
        raise _wrong(what, "do not use it, and find out who sent it")
    try:
        body = SignatureVerifier(public_key, TOKEN_DOMAIN).open(_inflated(words[2]), "token")
    except Forged as error:
        raise _wrong(error.problems[0].what, "paste the whole line, or do not use it: find out who sent it") from None
    return SignedToken(_parsed(Invitation, body), public_key)


def _inflated(text: str) -> bytes:
    """Returns the envelope, and no more than `MOST_BYTES` of it, whatever was compressed."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        return zlib.decompressobj().decompress(data, MOST_BYTES)
    except (binascii.Error, zlib.error):
        raise _wrong("is damaged", "paste the whole line") from None


Parsed = TypeVar("Parsed", Grant, Invitation)


def _parsed(kind: type[Parsed], body: bytes) -> Parsed:
    try:
        return kind.model_validate_json(body)
    except ValidationError:
        raise _wrong("was made by another release of echo-queue", "install the release of whoever invited") from None


def _wrong(what: str, fix: str = ANOTHER) -> InvitationError:
    return InvitationError(Problem("invitation", what, fix))
