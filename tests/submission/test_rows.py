"""A prompt row has one of the forms shown here."""

import json

import pytest

from echo_queue.errors import PromptError
from echo_queue.records import PromptRow
from echo_queue.submission.sources.rows import SOUGHT_ROWS, BadRow, deserialise, normalise, read, refuse, serialise


def parse(line: bytes) -> PromptRow:
    """Returns the row of a JSON line."""
    return normalise(read(line))


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


@pytest.mark.parametrize(
    ("value", "what", "fix"),
    [
        ("1180591620717411303424", "more than 64 bits", 'as text: "1180591620717411303424"'),
        ("-9223372036854775809", "more than 64 bits", "as text"),
        ('{"deep": [18446744073709551616]}', "more than 64 bits", "as text"),
        ("0.1234567890123456789012", "more digits than", "as text"),
        ("1e-400", "too small", "as text"),
        ("1e400", "infinity", ""),
        ('{"a": 1, "a": 2}', "the key 'a' twice", "keep one"),
        ('{"a": 1, "\\u0061" : 2}', "the key 'a' twice", "keep one"),
        ("NaN", "NaN at column", "null"),
        ("-Infinity", "Infinity at column", "null"),
        ("None", "None at column", "null"),
        ("True", "True at column", "true"),
        ('"\\ud83d"', "lone surrogate", "the whole character"),
        ("'x'", "single quotes", "json.dumps"),
        ('"a\tb"', "control character", "write it as"),
        ('"\\sqrt"', "a backslash", "twice"),
        ("[" * 250 + "]" * 250, "within each other", "as text"),
        ("1,", "comma before the end", "remove that comma"),
    ],
)
def test_a_value_that_would_change_or_is_no_json_is_refused_with_its_fix(value: str, what: str, fix: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse(f'{{"prompt": "x", "answer": {value}}}'.encode())
    assert what in bad.value.what and fix in bad.value.fix


@pytest.mark.parametrize(
    ("line", "what", "fix"),
    [
        (b"[", "several lines", ".[]"),
        (b"{\n", "several lines", "jq -c ."),
        (b'{"prompt": "x"} {"prompt": "y"}', "several objects", "per line"),
        (b'{"prompt": "x"}, {"prompt": "y"}', "several objects", "per line"),
        (b'{"prompt": "x"},\n', "comma before the end", "remove"),
        (b"\xff\xfe{\x00", "UTF-16", "UTF-8"),
        (b"\x1f\x8b\x08\x00", "gzip", "unpack"),
    ],
)
def test_a_file_of_another_form_is_recognised_by_its_line(line: bytes, what: str, fix: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse(line)
    assert what in bad.value.what and fix in bad.value.fix


@pytest.mark.parametrize(
    "value",
    ["9223372036854775808", "18446744073709551615", "-9223372036854775808", "0.1", "0.10000000000000001", "1e-300",
     "0.1000000000000000055511151231257827", '"1180591620717411303424"', '{"a": {"a" : 1}, "b": "\\":"}', "-0.0"],
)  # fmt: skip
def test_a_value_that_stays_what_it_is_is_taken(value: str) -> None:
    row = parse(f'{{"prompt": "x", "answer": {value}}}'.encode())
    assert row.columns["answer"] == json.loads(value)
    assert deserialise(serialise(row)) == row


def test_keys_of_messages_that_are_null_are_left_out() -> None:
    row = parse(b'{"prompt": [{"role": "user", "content": "x", "name": null, "tool_calls": null}]}')
    assert row.prompt == [{"role": "user", "content": "x"}]


def bad(*whats: str) -> list[tuple[str, BadRow]]:
    return [(f"p.jsonl:{number}", BadRow(what, what[:1])) for number, what in enumerate(whats, start=1)]


def told(*whats: str) -> list[tuple[str, str]]:
    with pytest.raises(PromptError) as caught:
        refuse(bad(*whats))
    return [(problem.where, problem.what) for problem in caught.value.problems]


def test_what_is_wrong_with_many_rows_is_told_once_for_each_kind() -> None:
    assert told("no `prompt`") == [("p.jsonl:1", "no `prompt`")]
    assert told("9 tokens, the model takes 8", "no `prompt`", "1,120 tokens, the model takes 8") == [
        ("p.jsonl:1", "9 tokens, the model takes 8"),
        ("p.jsonl:2", "no `prompt`"),
        ("p.jsonl:3", "1,120 tokens, the model takes 8"),
    ], "their fixes differ"
    assert told("no answer in 'x'", "is empty", "no answer in '(7'") == [
        ("p.jsonl:1", "no answer in 'x' (the same in 1 other row: p.jsonl:3)"),
        ("p.jsonl:2", "is empty"),
    ]
    [(where, what)] = told(*["no `prompt`"] * SOUGHT_ROWS)
    named = "p.jsonl:2, p.jsonl:3, p.jsonl:4, p.jsonl:5, …"
    assert (where, what) == ("p.jsonl:1", f"no `prompt` (the same in {SOUGHT_ROWS - 1} or more other rows: {named})")


def test_one_error_holds_few_kinds() -> None:
    assert [where for where, _ in told(*"abcdefgh")] == [f"p.jsonl:{number}" for number in range(1, 6)]
