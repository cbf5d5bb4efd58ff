"""Files of every form hold the same prompts, packed or not, alone or in a folder; a torn one is never a shorter one."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from echo_queue.errors import PromptError
from echo_queue.records import PromptRow
from echo_queue.submission.sources.registry import open_source
from tests.submission.test_sources import read_all

ROWS = [{"prompt": f'Zeile "{index}",\nüber zwei', "answer": str(index)} for index in range(25)]
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def json_lines(rows: list[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def separated(path: Path, rows: list[dict[str, str]], delimiter: str) -> bytes:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path.read_bytes()


def written(folder: Path, form: str, rows: list[dict[str, str]] = ROWS) -> bytes:
    """Returns a file of that form that holds the rows."""
    match form:
        case "jsonl":
            return json_lines(rows)
        case "json":
            return json.dumps(rows, indent=2, ensure_ascii=False).encode()
        case "columns.json":
            return json.dumps({name: [row[name] for row in rows] for name in rows[0]}).encode()
        case "csv" | "tsv":
            return separated(folder / "table", rows, "," if form == "csv" else "\t")
    pq.write_table(pa.Table.from_pylist(rows), folder / "table", row_group_size=7)
    return (folder / "table").read_bytes()


def scanned(name: str, size: int) -> list[tuple[int, int, str]]:
    return [(chunk.first, chunk.count, chunk.digest) for chunk, _ in open_source(name).scan(size)]


def refused(name: str) -> str:
    with pytest.raises(PromptError) as caught:
        list(open_source(name).scan(10))
    return str(caught.value)


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("form", ["jsonl", "json", "columns.json", "csv", "tsv"])
def test_the_same_rows_are_the_same_set_in_every_form_and_packing(tmp_path: Path, form: str, pack: str) -> None:
    plain, packed = tmp_path / "plain.parquet", tmp_path / f"packed.{form}{pack}"
    plain.write_bytes(written(tmp_path, "parquet"))
    packed.write_bytes(PACKS[pack](written(tmp_path, form)))
    assert read_all(str(packed), 4) == [PromptRow(row["prompt"], {"answer": row["answer"]}) for row in ROWS]
    assert scanned(str(packed), 10) == scanned(str(plain), 10)


@pytest.mark.parametrize("pack", [".gz", ".zst"])
def test_a_packed_file_of_several_members_is_read_to_its_end(tmp_path: Path, pack: str) -> None:
    (tmp_path / f"a.jsonl{pack}").write_bytes(b"".join(PACKS[pack](json_lines([row])) for row in ROWS))
    assert len(read_all(str(tmp_path / f"a.jsonl{pack}"), 7)) == len(ROWS)


@pytest.mark.parametrize("pack", [".gz", ".zst"])
def test_a_packed_file_that_is_torn_anywhere_is_refused_and_no_shorter_set(tmp_path: Path, pack: str) -> None:
    path, whole = tmp_path / f"a.jsonl{pack}", PACKS[pack](json_lines(ROWS))
    for end in range(1, len(whole)):
        path.write_bytes(whole[:end])
        assert "is damaged, or not packed as its name says" in refused(str(path))
    path.write_bytes(json_lines(ROWS))
    assert "is damaged, or not packed as its name says" in refused(str(path))


def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, suffix in ((2, ""), (0, ".gz"), (1, "")):
        part = json_lines(ROWS[number * 8 : (number + 1) * 8])
        (parts / f"part-{number}.jsonl{suffix}").write_bytes(PACKS[suffix](part))
    (parts / "README.md").write_text("what this is")
    (parts / ".jsonl").write_text("hidden")
    assert [row.columns["answer"] for row in read_all(str(parts), 5)] == [str(number) for number in range(24)]
    source = open_source(str(parts))
    chunks = [chunk for chunk, _ in source.scan(5)]
    assert source.location(chunks[3], 1) == f"{parts}/part-1.jsonl:7"
    (parts / "part-00.jsonl").write_bytes(json_lines(ROWS[:1]))
    assert open_source(str(parts)).read(chunks[3]) == source.read(chunks[3]), "a further file changes no other"
    (parts / "part-1.jsonl").unlink()
    with pytest.raises(PromptError, match=r"part-1\.jsonl: is gone: the source has changed"):
        open_source(str(parts)).read(chunks[3])


def test_a_folder_of_no_prompts_or_of_several_forms_is_refused(tmp_path: Path) -> None:
    assert "has no file of prompts" in refused(str(tmp_path))
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.csv").touch()
    assert "has files of several forms: a.jsonl, b.csv" in refused(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "[", "a.json:1: is a part of a value"),
        ("a.json", '[\n {"prompt": "a"},\n {"prompt": NaN}]', "a.json:3: is not JSON: NaN at column 13"),
        ("a.json", '{"prompt": "a"}\n{"prompt": "b"}', "a.json:2: goes on after its first value"),
        ("a.json", '{"prompt": "a"}', "whose `prompt` is text, and no list of a column's values"),
        ("a.json", '{"prompt": {"0": "a"}}', "whose `prompt` is an object"),
        ("a.json", '{"prompt": ["a", "b"], "answer": ["1"]}', "different lengths: 2 in prompt, 1 in answer"),
        ("a.json", "7", "a.json: is a number, and no list"),
        ("a.json", '[{"prompt": "a", "n": 12345678901234567890123}]', "an integer of more than 64 bits"),
        ("a.json", '[{"prompt": "a"}, "b"]', "a.json row 2: is text, not an object"),
        ("a.json", "", "a.json:1: is empty"),
        ("a.json", "[]", "a.json: is empty"),
        ("a.csv", "", "a.csv: is empty"),
        ("a.csv", "prompt\n", "a.csv: is empty"),
        ("a.csv", "prompt,prompt\na,b\n", "a.csv:1: names the column 'prompt' twice"),
        ("a.csv", "prompt,\na,b\n", "a.csv:1: has a column without a name"),
        ("a.csv", "prompt;answer\na;b\n", "a.csv:1: names one column alone, 'prompt;answer'"),
        ("a.csv", "prompt,answer\na\n", "a.csv row 1: has 1 values for 2 columns"),
        ("a.csv", 'prompt,answer\n"a" b,1\n', "a.csv:2: cannot be read: ',' expected after '\"'"),
        ("a.csv", 'prompt\n"a\n', "cannot be read: unexpected end of data"),
        ("a.csv", "question\na\n", "a.csv row 1: has no `prompt` (columns: question)"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    assert said in refused(str(tmp_path / name))


def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("prompt\nGrüße\n".encode("latin-1"))
    assert "is not UTF-8 here, or some lines below (byte 0xfc)" in refused(str(tmp_path / "a.csv"))


def test_a_table_from_a_spreadsheet_may_have_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("prompt,answer\r\na,1\r\n\r\nb,2\r\n".encode("utf-8-sig"))
    assert read_all(str(tmp_path / "a.csv"), 1) == [PromptRow("a", {"answer": "1"}), PromptRow("b", {"answer": "2"})]


def test_packed_parquet_is_refused(tmp_path: Path) -> None:
    assert "is a packed Parquet file" in refused(str(tmp_path / "a.parquet.gz"))
