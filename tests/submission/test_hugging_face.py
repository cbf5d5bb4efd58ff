"""Data sets that the package `datasets` itself has made are read without network, and a hub's is pinned to a commit."""

import shutil
from pathlib import Path

import pytest

from echo_queue.errors import PromptError, ServiceError
from echo_queue.records import PromptRow
from echo_queue.submission.sources.registry import absolute, open_source
from tests.submission.test_sources import read_all

datasets = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")

ROWS = [{"prompt": f"prompt {number}", "answer": number, "parts": [{"n": number}]} for number in range(25)]
EXPECTED = [PromptRow(row["prompt"], {"answer": row["answer"], "parts": row["parts"]}) for row in ROWS]
COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test, without a network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def test_a_folder_of_files_and_a_saved_data_set_are_the_same_rows(tmp_path: Path) -> None:
    made = datasets.Dataset.from_list(ROWS)
    (tmp_path / "files").mkdir()
    made.to_parquet(str(tmp_path / "files" / "train.parquet"))
    made.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": made}).save_to_disk(str(tmp_path / "several"))
    for name in ("files", "one", "several"):
        assert read_all(f"hf:{tmp_path / name}", 7) == EXPECTED
    source = open_source(f"hf:{tmp_path / 'files'}")
    chunks = [chunk for chunk, _ in source.scan(10)]
    assert source.location(chunks[1], 2) == f"hf:{tmp_path / 'files'}::train row 13"
    datasets.Dataset.from_list(ROWS[:12]).to_parquet(str(tmp_path / "files" / "train.parquet"))
    with pytest.raises(PromptError, match="are not those that were submitted"):
        open_source(source.name).read(chunks[1])


def test_a_folder_has_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("hf:./mine:main:train") == f"hf:{tmp_path}/mine:main:train"
    assert absolute("hf:openai/gsm8k:main") == "hf:openai/gsm8k:main"


def plant(cache: Path, commit: str, count: int) -> None:
    """Puts a data set of the hub into the cache, as a download of that commit leaves it."""
    source = cache.parent / f"source-{count}"
    source.mkdir()
    datasets.Dataset.from_list(ROWS[:count]).to_parquet(str(source / "train.parquet"))
    builder = datasets.load_dataset_builder(str(source))
    builder.download_and_prepare()
    place = cache / "owner___rows" / "default" / "0.0.0" / commit
    shutil.copytree(builder.cache_dir, place)
    for file in place.glob("*.arrow"):
        file.rename(place / file.name.replace(f"source-{count}", "rows"))


def test_a_data_set_of_the_hub_is_pinned_to_its_commit_and_read_from_the_cache(cache: Path) -> None:
    plant(cache, COMMIT, 25)
    source = open_source("hf:owner/rows")
    assert source.name == f"hf:owner/rows@{COMMIT}::train"
    assert read_all(source.name, 10) == EXPECTED
    with pytest.raises(ServiceError, match=f"the cache here has the commit {COMMIT} alone"):
        open_source(f"hf:owner/rows@{OTHER}")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("hf:", PromptError, "is no name of a data set"),
        ("hf:a:b:c:d", PromptError, "is no name of a data set"),
        ("hf:./none", PromptError, "there is no such folder"),
        ("hf:./files::test", PromptError, 'Unknown split "test"'),
        ("hf:./files:main", PromptError, "BuilderConfig 'main' not found"),
        ("hf:./saved::test", PromptError, "has no split 'test', but train"),
        ("hf:owner/none", ServiceError, "Couldn't reach 'owner/none' on the Hub"),
    ],
)
def test_what_is_no_data_set_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "files" / "train.parquet"))
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(error, match=said):
        open_source(name)
