"""Length features say which prompts are alike, as far as the length of answers can be known beforehand."""

from pathlib import Path

import orjson
import pytest

from echo_queue.errors import PromptError
from echo_queue.records import PromptRow
from echo_queue.submission.length_features import BUCKETS, buckets, refuse_featureless
from echo_queue.submission.sources.registry import open_source


def of_prompts(*texts: str) -> list[int]:
    return list(buckets([PromptRow(text, {}) for text in texts], ""))


def of_values(*values: object) -> list[int]:
    return list(buckets([PromptRow("prompt", {"level": value}) for value in values], "level"))


def test_prompts_of_about_the_same_length_are_alike_and_longer_ones_come_after_them() -> None:
    short, medium, alike, long, longest = of_prompts("a", "b" * 99, "c" * 98, "d" * 400, "e" * 10**6)
    assert 1 == short < medium == alike < long < longest == BUCKETS


def test_chat_messages_count_by_what_is_in_them() -> None:
    messages = [{"role": "system", "content": "é" * 100}, {"role": "user", "content": "x" * 100}]
    assert list(buckets([PromptRow(messages, {})], "")) == of_prompts("x" * 200)


def test_equal_values_of_the_named_column_are_alike_whatever_they_are() -> None:
    easy, hard, again, nested, same = of_values("easy", 5, "easy", {"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert easy == again and nested == same
    assert len({easy, hard, nested}) == 3
    assert 1 <= min(easy, hard, nested) <= max(easy, hard, nested) <= BUCKETS


def test_of_a_row_whose_value_is_null_nothing_is_known() -> None:
    assert of_values(None) == [0]


def test_a_row_without_the_named_column_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ({"prompt": "a", "level": 1}, {"prompt": "b"})))
    source = open_source(str(path))
    ((chunk, rows),) = source.scan(10)
    refuse_featureless("", source, chunk, rows)
    with pytest.raises(PromptError, match="has no column `level`") as error:
        refuse_featureless("level", source, chunk, rows)
    assert error.value.problems[0].where == source.location(chunk, 1)
