"""A prompt row has one of the forms shown here."""

import pytest

from echo_queue.records import PromptRow
from echo_queue.submission.sources.rows import BadRow, deserialise, parse, serialise


def test_every_column_but_the_prompt_reaches_the_environment() -> None:
    row = parse(b'{"prompt": "2 + 2 = ?", "answer": "4", "level": {"deep": [1, null]}}')
    assert row == PromptRow("2 + 2 = ?", {"answer": "4", "level": {"deep": [1, None]}})


def test_chat_messages_are_a_prompt() -> None:
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}]
    assert (
        parse(b'{"prompt": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}]}').prompt == messages
    )


def test_a_row_is_the_same_after_a_shard() -> None:
    row = PromptRow("Grüße\n\u2028 x", {"n": 1.5, "none": None, "nested": {"a": ["b"]}})
    line = serialise(row)
    assert b"\n" not in line
    assert deserialise(line) == row


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"", "is empty"),
        (b"   ", "is empty"),
        (b'{"prompt": "x"', "is not JSON"),
        (b'{"prompt": "ab\n', "at column 15"),
        (b'{"prompt": "\xff"}', "is not UTF-8 (byte 0xff at column 13)"),
        (b'\xef\xbb\xbf{"prompt": "x"}', "begins with a byte order mark"),
        (b"[1]", "is a list, not an object"),
        (b'{"text": "x", "id": 1}', "has no `prompt` (columns: text, id)"),
        (b'{"prompt": " \\n"}', "its prompt is empty"),
        (b'{"prompt": null}', "its prompt is missing"),
        (b'{"prompt": 7}', "its prompt is a number"),
        (b'{"prompt": []}', "its prompt has no messages"),
        (b'{"prompt": ["x"]}', "message 1 is text"),
        (b'{"prompt": [{"role": "user"}]}', "message 1: `content` is missing"),
        (b'{"prompt": [{"role": "user", "content": [{"type": "text"}]}]}', "message 1: `content` is a list"),
        (b'{"prompt": [{"role": "", "content": "x"}]}', "message 1: `role` is empty"),
        (b'{"prompt": [{"role": "user", "content": "x", "tool": "y"}]}', "message 1 has unknown keys: tool"),
        (b'{"prompt": [{"role": "user", "content": " "}]}', "all its messages are empty"),
    ],
)
def test_a_bad_row_says_what_is_wrong(line: bytes, what: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse(line)
    assert what in bad.value.what
    assert bad.value.fix
