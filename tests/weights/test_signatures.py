"""Promises of signatures: what the learner has not signed, no worker reads."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from echo_queue.errors import ServiceError
from echo_queue.weights.signatures import Forged, SignatureVerifier, Signer

BODY = b'{"format":2,"name":"\\"key\\":"}'


def test_what_was_signed_opens_with_the_public_key() -> None:
    signer = Signer.generate()
    assert SignatureVerifier(signer.public_key).open(signer.sign(BODY), "test") == BODY


def test_any_changed_byte_is_noticed() -> None:
    signer = Signer.generate()
    envelope = signer.sign(BODY)
    for place in range(len(envelope)):
        changed = bytearray(envelope)
        changed[place] ^= 1
        with pytest.raises(Forged, match="test"):
            SignatureVerifier(signer.public_key).open(bytes(changed), "test")
    for cut in range(len(envelope)):
        with pytest.raises(Forged):
            SignatureVerifier(signer.public_key).open(envelope[:cut], "test")


def test_another_key_is_named() -> None:
    signer, other = Signer.generate(), Signer.generate()
    with pytest.raises(Forged, match="which is trusted here"):
        SignatureVerifier(other.public_key).open(signer.sign(BODY), "test")


def test_a_key_file_is_private_and_lasts(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "weights.key"
    assert Signer.kept_at(path) == Signer.kept_at(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_learners_that_make_the_key_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(Signer.kept_at, [tmp_path / "weights.key"] * 8))) == 1


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.key"
    Signer.kept_at(path)
    path.chmod(0o640)
    with pytest.raises(ServiceError, match="chmod 600"):
        Signer.kept_at(path)


def test_a_key_that_is_none_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "weights.key").touch(0o600)
    with pytest.raises(ServiceError, match="64 hexadecimal digits"):
        Signer.kept_at(tmp_path / "weights.key")
    with pytest.raises(ServiceError, match="no public key"):
        SignatureVerifier("abc")


def test_secrets_differ_by_purpose_and_survive_a_restart() -> None:
    signer = Signer.generate()
    assert signer.secret("chunks") == Signer(signer.seed).secret("chunks") != signer.secret("tokens")
