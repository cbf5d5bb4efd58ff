"""A map makes prompts of a user's rows as they are, and a filter loses or doubles none of those that it keeps."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from echo_queue.config.prompt_map import PromptMap
from echo_queue.errors import PromptError
from echo_queue.submission.sources.registry import open_source
from echo_queue.submission.sources.row_map import mapped
from echo_queue.submission.sources.rows import BadRow
from echo_queue.submission.sources.source import spell

GSM8K = {"question": "How many, in $?", "answer": "2 + 2 = 4 #### no\n#### 1,234 "}


def of(row: dict[str, Any], **rules: Any) -> Any:
    """Returns what rules make of a row, which itself stays as it is."""
    before = orjson.dumps(row)
    made = mapped(PromptMap.model_validate(rules), row)
    assert orjson.dumps(row) == before
    return made


def test_rows_of_gsm8k_become_a_chat_with_a_number_as_the_answer() -> None:
    made = of(
        GSM8K,
        template="{question}\nPut it in \\boxed{}. {{question}}",
        system="Be brief.",
        extract={"answer": r"####\s*(.+)"},
    )
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many, in $?\nPut it in \\boxed{}. {question}"},
    ]
    assert made == {"question": "How many, in $?", "answer": "1,234", "prompt": messages}


def test_a_column_gets_another_name_and_two_columns_may_change_places() -> None:
    assert of({"a": 1, "b": 2, "c": 3}, columns={"a": "b", "b": "a"}) == {"a": 2, "b": 1, "c": 3}
    assert of(GSM8K, columns={"prompt": "question"})["prompt"] == GSM8K["question"]


def test_the_parts_of_a_split_are_the_whole_and_have_no_prompt_in_common_whoever_speaks_before_it() -> None:
    rows = [{"prompt": f"prompt {number}"} for number in range(2_000)]
    held, *others = ([row for row in rows if of(row, split=part)] for part in ((0, 0.1), (0.1, 0.6), (0.6, 1)))
    assert 150 < len(held) < 250
    assert sorted(row["prompt"] for part in (held, *others) for row in part) == sorted(row["prompt"] for row in rows)
    kept = [row for row in rows if of(row, split=(0, 0.1), system="S", chat=True)]
    assert kept == held, "what is put around a prompt does not move it"
    messages = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    assert 150 < sum(of(row, split=(0, 0.1)) is not None for row in messages) < 250


def test_a_system_message_comes_before_the_messages_that_a_row_has() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    system = [{"role": "system", "content": "S"}]
    assert of({"prompt": messages}, system="S")["prompt"] == system + messages
    assert of({"prompt": "Hi"}, chat=True)["prompt"] == messages


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({"ranges": {"rate": (0.2, 0.5)}}, [1, 2]),
        ({"min_characters": 3}, [2, 3]),
        ({"max_characters": 2, "system": "a long system message"}, [0, 1]),
        ({"ranges": {"rate": (0.2, 1)}, "max_characters": 3}, [1, 2]),
    ],
)
def test_rows_are_kept_by_numbers_and_by_the_length_of_their_prompt(rules: dict[str, Any], kept: list[int]) -> None:
    rows = [{"prompt": "x" * (number + 1), "rate": str(number / 4)} for number in range(4)]
    assert [number for number, row in enumerate(rows) if of(row, **rules) is not None] == kept


@pytest.mark.parametrize(
    ("row", "rules", "said"),
    [
        (GSM8K, {"template": "{problem}"}, "has no column `problem`, which prompts.map.template names (columns: quest"),
        ({"question": None}, {"template": "{question}"}, "its `question` is missing, which prompts.map.template takes"),
        ({"answer": ["4"]}, {"extract": {"answer": "x"}}, "its `answer` is a list, which prompts.map.extract takes as"),
        ({"rate": True}, {"ranges": {"rate": (0, 1)}}, "its `rate` is true or false, and prompts.map.ranges compares"),
        ({"rate": "NaN"}, {"ranges": {"rate": (0, 1)}}, "its `rate` is text, and prompts.map.ranges compares numbers"),
    ],
)
def test_a_row_that_does_not_fit_the_map_is_told(row: dict[str, Any], rules: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRow) as bad:
        of(row, **rules)
    assert said in bad.value.what


def test_a_filtered_file_is_read_chunk_by_chunk_and_each_row_keeps_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"prompt": str(number), "level": number % 3} for number in range(30)]
    rows[3:9] = [{"prompt": "none", "level": 0}] * 6
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    name = spell(str(path), {}, PromptMap(ranges={"level": (1, 2)}))
    source = open_source(name)
    assert source.name == name
    chunks = [chunk for chunk, _ in source.scan(4)]
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.first for chunk in chunks] == [sum(one.count for one in chunks[:at]) for at in range(len(chunks))]
    read = [
        (row.prompt, source.location(chunk, at))
        for chunk in chunks
        for at, row in enumerate(open_source(name).read(chunk))
    ]
    assert read == [(row["prompt"], f"{path}:{number + 1}") for number, row in enumerate(rows) if row["level"] != 0]
    other = open_source(spell(str(path), {}, PromptMap(ranges={"level": (1, 2)}, system="S")))
    with pytest.raises(PromptError, match="are not those that were submitted"):
        other.read(chunks[0])
