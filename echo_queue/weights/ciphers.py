"""Makes parts as they are stored: cut into chunks and, if the run encrypts, each chunk under AES-256-GCM on its own.

- Stored bytes are verified before they are decrypted; relays and the store need no key.
- Every part has a key of its own, derived from the run's chunk key and the part's salt, so a nonce is only the chunk's
  number. The salt is a keyed digest of the content and of how it is cut: equal content is stored as equal bytes, and
  no key is ever used for two contents.
"""

from collections.abc import Iterator

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Version
from echo_queue.weights.manifest import TAG_BYTES, Damaged, Part, digest, part_key

PURPOSE = b"echo-queue weights 2 part"
SALT_PURPOSE = b"echo-queue weights 2 salt"
NONCE_BYTES = 12


def cut(
    version: Version, base: Version | None, data: bytes, chunk_bytes: int, chunk_key: bytes | None
) -> tuple[Part, bytes]:
    """Returns the part that holds `data`, and its bytes as they are to be stored."""
    salt = ""
    if chunk_key is not None:
        salt = _salt(data, chunk_bytes, chunk_key)
        data = _encrypted(data, chunk_bytes - TAG_BYTES, _part_cipher(chunk_key, salt))
    chunks = tuple(digest(chunk) for chunk in _cut(memoryview(data), chunk_bytes))
    return Part(part_key(version, base, chunks), len(data), chunk_bytes, chunks, salt), data


def plain(part: Part, stored: memoryview, chunk_key: bytes | None) -> memoryview:
    """Returns the shard in a verified part: `stored`, or its plaintext.

    Raises `ServiceError` for a wrong key, `Damaged` for a salt that is not that of this content, cut in this way.
    """
    if not part.salt:
        return stored
    if chunk_key is None:
        fix = "let this role read the run's `run_keys` (docs/rights.md)"
        raise ServiceError(Problem(part.key, "is encrypted, and this role has no chunk key", fix))
    cipher = _part_cipher(chunk_key, part.salt)
    clear = bytearray(part.size - TAG_BYTES * len(part.chunks))
    end = 0
    try:
        for index, chunk in enumerate(_cut(stored, part.chunk_bytes)):
            plaintext = cipher.decrypt(_nonce(index), chunk, None)
            clear[end : end + len(plaintext)] = plaintext
            end += len(plaintext)
    except InvalidTag:
        fix = "start this worker again: the run has another chunk key"
        raise ServiceError(Problem(part.key, "cannot be decrypted with this worker's chunk key", fix)) from None
    if _salt(clear, part.chunk_bytes, chunk_key) != part.salt:
        fix = "publish the version again, and find out who else signs with the learner's key"
        raise Damaged(Problem(part.key, "has a salt that is not that of its content and its chunks", fix))
    return memoryview(clear)


def _encrypted(data: bytes, step: int, cipher: AESGCM) -> bytes:
    pieces = _cut(memoryview(data), step)
    return b"".join(cipher.encrypt(_nonce(index), piece, None) for index, piece in enumerate(pieces))


def _cut(data: memoryview, step: int) -> Iterator[memoryview]:
    return (data[start : start + step] for start in range(0, len(data), step))


def _salt(data: bytes | bytearray, chunk_bytes: int, chunk_key: bytes) -> str:
    key = HKDF(SHA256(), 32, None, SALT_PURPOSE).derive(chunk_key)
    return blake3(chunk_bytes.to_bytes(8, "big"), key=key).update(data).hexdigest()[:32]


def _part_cipher(chunk_key: bytes, salt: str) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, bytes.fromhex(salt), PURPOSE).derive(chunk_key))


def _nonce(index: int) -> bytes:
    return index.to_bytes(NONCE_BYTES, "big")
