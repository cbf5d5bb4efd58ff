"""Signs documents with Ed25519, verifies them, and derives secrets from the same key.

- An envelope is `{"body":…,"key":…,"signature":…}`. Its body is not parsed before the signature of its exact bytes has
  been verified; no other spelling of an envelope is accepted.
- Signatures are domain separated: nothing else that this key may ever sign passes for a body.
- The private key is one file of 64 hexadecimal digits, readable by its owner only, and never made twice.
"""

import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from echo_queue import failpoints
from echo_queue.atomic_file import write_atomically
from echo_queue.errors import Problem, ServiceError

DOMAIN = b"echo-queue weights 2\0"
START = b'{"body":'
END = re.compile(rb',"key":"([0-9a-f]{16})","signature":"([0-9a-f]{128})"\}')
END_BYTES = 169
KEY_NAME = "weights.key"


class Forged(ServiceError):
    """The document is not signed by the key that is trusted here."""


@dataclass(frozen=True, repr=False)
class Signer:
    """A private key, by default the learner's. `domain`: what it signs; each kind of document has its own."""

    seed: bytes
    domain: bytes = DOMAIN

    @classmethod
    def generate(cls) -> "Signer":
        return cls(os.urandom(32))

    @classmethod
    def parse(cls, text: str, where: str, domain: bytes = DOMAIN) -> "Signer":
        """Parses a private key. Raises `ServiceError` for anything but 64 hexadecimal digits."""
        if not re.fullmatch(r"[0-9a-f]{64}", text.strip()):
            raise ServiceError(Problem(where, "is no signing key", "it must be 64 hexadecimal digits"))
        return cls(bytes.fromhex(text.strip()), domain)

    @classmethod
    def kept_at(cls, path: Path, domain: bytes = DOMAIN) -> "Signer":
        """Reads the key in `path`, made there the first time; if several processes make it at once, one wins."""
        try:
            if not path.exists():
                _make(path)
            if path.stat().st_mode & 0o077:
                raise ServiceError(Problem(str(path), "other users may read this private key", f"chmod 600 {path}"))
            return cls.parse(path.read_text(), str(path), domain)
        except OSError as error:
            fix = "let its owner, and no other, read and write it"
            raise ServiceError(Problem(str(path), f"cannot be used: {error.strerror}", fix)) from None

    @property
    def public_key(self) -> str:
        """The public key in hexadecimal digits."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, body: bytes) -> bytes:
        """Returns the envelope of `body`, which is canonical JSON."""
        signature = self._key.sign(self.domain + body).hex()
        return START + body + f',"key":"{key_id(self.public_key)}","signature":"{signature}"}}'.encode()

    def secret(self, purpose: str) -> bytes:
        """Returns 32 bytes that only this key's holder can derive; they are the same after a restart."""
        return HKDF(SHA256(), 32, None, self.domain + purpose.encode()).derive(self.seed)

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


class SignatureVerifier:
    """Opens envelopes of one domain that the holder of one key has signed."""

    def __init__(self, public_key: str, domain: bytes = DOMAIN) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", public_key):
            what, fix = f"{public_key!r:.80} is no public key", "it must be 64 hexadecimal digits"
            raise ServiceError(Problem("weights.public_key", what, fix))
        self.public_key = public_key
        self._domain = domain
        self._key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))

    def open(self, envelope: bytes, where: str) -> bytes:
        """Verifies an envelope and returns its body. Raises `Forged`; `where` is the object's key."""
        end = END.fullmatch(envelope, max(0, len(envelope) - END_BYTES))
        if end is None or not envelope.startswith(START):
            raise Forged(_problem(where, "is not signed"))
        body = envelope[len(START) : end.start()]
        signer = end[1].decode()
        if signer != key_id(self.public_key):
            what = f"is signed by the key {signer}, not by {key_id(self.public_key)}, which is trusted here"
            raise Forged(_problem(where, what))
        try:
            self._key.verify(bytes.fromhex(end[2].decode()), self._domain + body)
        except InvalidSignature:
            raise Forged(_problem(where, "was changed after it was signed")) from None
        return body


def key_id(public_key: str) -> str:
    """Returns the short name of a public key."""
    return blake3(bytes.fromhex(public_key)).hexdigest()[:16]


def _problem(where: str, what: str) -> Problem:
    return Problem(
        where, what, "find out who else writes to the store; a worker trusts one key from its start to its end"
    )


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    write_atomically(temporary, Signer.generate().seed.hex().encode(), "key", mode=0o600)
    try:
        failpoints.step("link key", lambda: os.link(temporary, path), path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
