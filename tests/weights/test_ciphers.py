"""Parts as they are stored: under one key there is never a second content."""

from echo_queue.records import Version
from echo_queue.weights.ciphers import cut, plain

KEY, CONTENT = bytes(range(32)), bytes(range(256)) * 40


def test_the_same_content_is_stored_as_the_same_bytes() -> None:
    once, again = (cut(Version(1, 2), None, CONTENT, 1024, KEY) for _ in range(2))
    assert once == again
    assert bytes(plain(once[0], memoryview(once[1]), KEY)) == CONTENT


def test_content_that_is_cut_otherwise_has_another_key() -> None:
    """Else the same nonces would meet other plaintexts under it."""
    narrow, wide = (cut(Version(1, 2), None, CONTENT, size, KEY)[0] for size in (1024, 2048))
    assert narrow.salt != wide.salt
