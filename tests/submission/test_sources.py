"""Sources: every row once, whatever the chunk size; bad rows by file and line; a changed source is refused."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.poker.rules import DESCRIPTIONS
from echo_queue.errors import PromptError
from echo_queue.records import PromptRow
from echo_queue.submission.sources.reasoning_gym import original
from echo_queue.submission.sources.registry import absolute, open_source
from echo_queue.submission.sources.rows import SOUGHT_ROWS
from echo_queue.submission.sources.source import spell

Write = Callable[[Path, Sequence[dict[str, object]]], Path]


def write_jsonl(directory: Path, rows: Sequence[dict[str, object]]) -> Path:
    path = directory / "prompts.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    return path


def write_parquet(directory: Path, rows: Sequence[dict[str, object]]) -> Path:
    path = directory / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=7)
    return path


def numbered(count: int) -> list[dict[str, object]]:
    return [{"prompt": f"prompt {index}", "answer": index} for index in range(count)]


def read_all(name: str, size: int) -> list[PromptRow]:
    """Returns the rows that other processes read, chunk by chunk, given only the scanned chunks."""
    chunks = [chunk for chunk, _ in open_source(name).scan(size)]
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    return [row for chunk in chunks for row in open_source(name).read(chunk)]


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 40), size=st.integers(1, 45))
def test_every_row_is_in_exactly_one_chunk(
    tmp_path_factory: pytest.TempPathFactory, write: Write, count: int, size: int
) -> None:
    path = write(tmp_path_factory.mktemp("rows"), numbered(count))
    rows = read_all(str(path), size)
    assert rows == [PromptRow(f"prompt {index}", {"answer": index}) for index in range(count)]


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_chat_messages_come_from_both_kinds_of_file(tmp_path: Path, write: Write) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert read_all(str(write(tmp_path, [{"prompt": messages}])), 10) == [PromptRow(messages, {})]


def test_bad_rows_are_named_by_file_and_line_before_any_other_chunk_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [b'{"prompt": "x"}'] * 40
    lines[11], lines[25] = b"{oops", b'{"prompt": ""}'
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(PromptError) as error:
        list(open_source(str(path)).scan(10))
    assert [problem.where for problem in error.value.problems] == [f"{path}:12", f"{path}:26"]


def test_only_the_first_bad_rows_are_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"bad\n" * 1000)
    with pytest.raises(PromptError) as error:
        list(open_source(str(path)).scan(10))
    [problem] = error.value.problems
    assert problem.where == f"{path}:1"
    named = ", ".join(f"prompts.jsonl:{line}" for line in range(2, 6))
    assert problem.what.endswith(f"(the same in {SOUGHT_ROWS - 1} or more other rows: {named}, …)")


def test_a_blank_line_is_an_error_because_rows_are_counted_by_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n\n{"prompt": "b"}\n')
    with pytest.raises(PromptError, match=r"prompts\.jsonl:2: is empty"):
        list(open_source(str(path)).scan(10))


def test_a_bad_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, [{"prompt": "a"}] * 9 + [{"prompt": None}])
    with pytest.raises(PromptError, match=r"prompts\.parquet row 10: its prompt is missing"):
        list(open_source(str(path)).scan(4))


PROMPTS = pa.array(["a", "b", "c"])
NANOSECONDS = pa.array([1, 1_001, None], pa.timestamp("ns"))
NESTED = pa.StructArray.from_arrays([PROMPTS, PROMPTS], ["name", "name"])


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("made", NANOSECONDS, "has values of the type timestamp[ns] in `made`, which JSON cannot hold"),
        ("made", NANOSECONDS.cast(pa.timestamp("ms"), safe=False), "of the type timestamp[ms] in `made`"),
        ("made", pa.nulls(3, pa.date32()), "has values of the type date32[day] in `made`"),
        ("took", pa.array([1, 2, 3], pa.duration("ns")), "has values of the type duration[ns] in `took`"),
        ("price", pa.array([1, 2, 3], pa.decimal128(9, 2)), "has values of the type decimal128(9, 2) in `price`"),
        ("image", pa.array([b"\x00\xff"] * 3), "has values of the type binary in `image`"),
        ("image", pa.array([b"\x00"] * 3).dictionary_encode(), "has values of the type binary in `image`"),
        ("images", pa.array([[{"bytes": b"\x00"}]] * 3), "has values of the type binary in `images`"),
        ("times", pa.MapArray.from_arrays([0, 1, 2, 3], PROMPTS, NANOSECONDS), "of the type timestamp[ns] in `times`"),
        ("prompt", PROMPTS, "has several columns called `prompt`"),
        ("answer", PROMPTS, "has several columns called `answer`"),
        ("meta", NESTED, "has several fields called `name` in `meta`"),
        ("metas", pa.ListArray.from_arrays([0, 1, 2, 3], NESTED), "has several fields called `name` in `metas`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_parquet_column_that_no_row_can_have_is_named_once(
    tmp_path: Path, name: str, values: pa.Array, said: str
) -> None:
    path = tmp_path / "prompts.parquet"
    table = pa.Table.from_arrays([PROMPTS, PROMPTS, values], ["prompt", "answer", name])
    pq.write_table(table, path)
    for size in (1, 100):
        with pytest.raises(PromptError) as caught:
            read_all(str(path), size)
        [problem] = caught.value.problems
        assert problem.where == str(path) and said in problem.what


def test_parquet_columns_of_every_other_kind_reach_the_environment(tmp_path: Path) -> None:
    columns = {
        "prompt": PROMPTS.dictionary_encode(),
        "level": pa.array([1, 2, 3], pa.uint64()),
        "kind": pa.array(["x", None, "y"]).dictionary_encode(),
        "parts": pa.array([[{"name": "x", "share": 0.5}], [], None]),
        "text": pa.array(["é", "", None], pa.large_string()),
        "nothing": pa.nulls(3),
    }
    path = tmp_path / "prompts.parquet"
    pq.write_table(pa.table(columns), path)
    rows = read_all(str(path), 2)
    assert [row.prompt for row in rows] == ["a", "b", "c"]
    assert {name: [row.columns[name] for row in rows] for name in columns if name != "prompt"} == {
        "level": [1, 2, 3],
        "kind": ["x", None, "y"],
        "parts": [[{"name": "x", "share": 0.5}], [], None],
        "text": ["é", "", None],
        "nothing": [None] * 3,
    }


def test_parquet_text_that_is_not_utf8_is_named_by_its_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    latin = pa.array([b"a", b"b", b"\xe9"]).view(pa.string())
    pq.write_table(pa.table({"prompt": PROMPTS, "answer": latin}), path)
    with pytest.raises(PromptError, match=r"row 3: has a value in `answer` that cannot be read: 'utf-8'"):
        read_all(str(path), 2)


def test_a_parquet_file_with_damaged_pages_says_so(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, numbered(200))
    data = bytearray(path.read_bytes())
    data[8:300] = bytes(292)
    path.write_bytes(data)
    with pytest.raises(PromptError, match=r"prompts\.parquet: is damaged: .*\s+→ write the file again"):
        read_all(str(path), 100)


def test_a_parquet_file_without_prompts_names_its_columns(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, [{"question": "a", "answer": "b"}])
    with pytest.raises(PromptError, match=r"parquet row 1: has no `prompt` \(columns: question, answer\)"):
        list(open_source(str(path)).scan(4))


def test_a_parquet_file_without_its_reader_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path, numbered(1))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PromptError, match=r"needs the pyarrow package\s+→ pip install 'echo-queue\[parquet\]'"):
        list(open_source(str(path)).scan(4))


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.parquet"])
def test_a_file_that_is_missing_says_where_it_was_looked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(PromptError, match=r"cannot be read on .*No such file"):
        list(open_source(str(tmp_path / name)).scan(4))


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.parquet"])
def test_an_empty_file_is_no_prompt_set(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(PromptError, match=r"is empty|is not Parquet"):
        list(open_source(str(path)).scan(4))


@pytest.mark.parametrize("name", ["", "prompts.txt", "prompts.txt.gz", "https://host/prompts"])
def test_what_is_no_source_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(PromptError, match=r"a \.jsonl, .*\.parquet file, .*reasoning-gym:DATASET, .*module:function"):
        open_source(name)


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_a_changed_file_is_refused_in_the_chunks_that_changed(tmp_path: Path, write: Write) -> None:
    rows = numbered(30)
    path = write(tmp_path, rows)
    chunks = [chunk for chunk, _ in open_source(str(path)).scan(10)]
    rows[15] = {"prompt": "PROMPT 15", "answer": 15}
    write(tmp_path, rows)
    source = open_source(str(path))
    assert len(source.read(chunks[0])) == 10
    with pytest.raises(PromptError, match=r"rows 11 to 20 are not those that were submitted"):
        source.read(chunks[1])
    write(tmp_path, rows[:12])
    with pytest.raises(PromptError, match="has changed"):
        source.read(chunks[2])


def test_a_generated_range_can_be_read_alone_and_scores_full_marks() -> None:
    import reasoning_gym

    name = spell("reasoning-gym:spell_backward", {"size": 25, "seed": 3})
    rows = read_all(name, 10)
    whole = reasoning_gym.create_dataset("spell_backward", size=25, seed=3)
    assert [row.prompt for row in rows] == [whole[index]["question"] for index in range(25)]
    dataset, entry = original(rows[17].columns)
    assert dataset.score_answer(entry["answer"], entry) == 1.0
    assert orjson.loads(orjson.dumps(rows[17].columns["entry"]["metadata"]))["source_index"] == 17  # type: ignore[index]


WITHOUT_PLOTS = """
import subprocess
import sys
from echo_queue.submission.sources.reasoning_gym import load_package

package = load_package()
assert not [name for name in sys.modules if name.startswith("matplotlib")]
assert all(package.create_dataset(name, size=1, seed=1)[0] for name in ("game_of_life", "game_of_life_halting"))
from matplotlib import pyplot

assert pyplot.figure
"""


@pytest.mark.slow
def test_reasoning_gym_comes_without_matplotlib_which_can_be_imported_all_the_same() -> None:
    command = [sys.executable, "-c", WITHOUT_PLOTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_generated_set_without_a_seed_would_differ_between_machines() -> None:
    with pytest.raises(PromptError, match="needs a seed"):
        open_source(spell("reasoning-gym:spell_backward", {"size": 25}))


def test_wrong_options_of_a_generated_set_are_explained() -> None:
    with pytest.raises(PromptError, match=r"prompts\.options: reasoning-gym's spell_backward refuses them"):
        list(open_source(spell("reasoning-gym:spell_backward", {"sise": 25, "seed": 1})).scan(10))
    with pytest.raises(PromptError, match=r"no dataset 'spel_backward'"):
        list(open_source(spell("reasoning-gym:spel_backward", {"seed": 1})).scan(10))


def test_options_mean_nothing_to_a_file(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"prompts\.options: mean nothing to the file"):
        spell(str(tmp_path / "x.jsonl"), {"size": 3})


HANDS = 'configs.poker:Hands {"opponent":"tight","seed":7,"size":10}'
OWN = HANDS.partition(" ")[0]


def test_any_range_of_own_rows_can_be_read_alone_and_hands_of_poker_alternate_the_seats() -> None:
    source = open_source(HANDS, OWN)
    whole = [row for chunk, _ in source.scan(4) for row in source.read(chunk)]
    (_, (chunk, rows), _) = open_source(source.name, OWN).scan(4)
    assert open_source(HANDS, OWN).read(chunk) == rows == whole[4:8]
    assert [row.columns["seat"] for row in whole] == [0, 1] * 5
    assert [row.columns["deal"] for row in whole] == list(range(7, 17))
    assert source.location(chunk, 3) == "configs.poker:Hands row 7"


def test_own_rows_are_refused_where_the_code_makes_others(monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(HANDS, OWN)
    (chunk, _), *_ = source.scan(4)
    monkeypatch.setitem(DESCRIPTIONS, "leduc", "Leduc poker, told in other words.")
    with pytest.raises(PromptError, match="rows 1 to 4 are not those that were submitted: its code, or a package"):
        source.read(chunk)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("[]", "has no rows"),
        ("[1]", r"own_rows:rows row 0: is a number, not an object"),
        ("[{'prompt': 'a'}, {'prompt': ''}]", r"own_rows:rows row 1: its prompt is empty"),
        ("[{'prompt': 'a'}, {'prompt': '\\ud800'}]", r"own_rows:rows row 1: has a value that JSON cannot hold"),
        ("7", r"own_rows:rows raised TypeError: object of type 'int' has no len\(\)"),
        ("[][1]", r"own_rows:rows raised IndexError: .*own_rows\.py, line 2"),
    ],
)
def test_what_own_code_makes_is_checked(
    rows: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rows.py").write_text(f"def rows(number):\n    return {rows}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rows", raising=False)
    source = open_source(f'own_rows:rows {{"number": {abs(hash(rows)) % 2**32}}}', "own_rows:rows")
    with pytest.raises(PromptError, match=reason):
        list(source.scan(4))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ('configs.poker:Hands {"seed":7,"size":10}', "missing 1 required positional argument: 'opponent'"),
        ('configs.poker:Hands {"opponent":"tight","seed":"x","size":10}', "TypeError(.|\n)*hands.py, line"),
        ('configs.poker:Hands {"opponent":"bot","seed":7,"size":10}', "no opponent 'bot'"),
        ('configs.poker:Hands {"opponent":"tight","seed":7,"size":10,"game":"stud"}', "no game 'stud'"),
    ],
)
def test_wrong_options_of_own_rows_are_explained(name: str, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        list(open_source(name, OWN).scan(4))


def test_code_that_the_configuration_does_not_name_is_not_called_for_a_submitter() -> None:
    with pytest.raises(PromptError, match=r"os:abort is not what this machine's configuration names"):
        open_source("os:abort", OWN)
    with pytest.raises(PromptError, match="not what this machine's configuration names"):
        open_source(HANDS)


def test_the_path_of_a_file_is_whole_without_dots_and_keeps_the_links_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert absolute("../own/x.jsonl") == str(tmp_path.resolve() / "own" / "x.jsonl")
    assert absolute(str(tmp_path / "link" / "x.jsonl")) == str(tmp_path / "link" / "x.jsonl")
    assert absolute("reasoning-gym:../x") == "reasoning-gym:../x"
    assert absolute(HANDS) == HANDS and absolute("hf:gsm8k") == "hf:gsm8k"
