"""`echo-queue export`: a version that the run has published becomes a folder that is whole or is not there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from echo_queue import __version__
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import DONE, REFUSED
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.failpoints import CRASHED, VARIABLE
from echo_queue.models.exported import EXPORTS, FILE, Mark, mark_of
from echo_queue.records import Version
from echo_queue.reporting.evaluation_record import EvaluationRecord
from tests.http_server import serving
from tests.servers.s3 import BUCKET, Server
from tests.waiting import DEADLINE_S
from tests.weights.destinations.hub_server import TOKEN, HubServer
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, tensors_of

pytestmark = pytest.mark.slow
TOKENS = torch.arange(3, 40).unsqueeze(0)


class PublishedRun:
    """A run whose learner has published versions 1.0 and 1.1, whose weights are those of the folders in `models`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.models = [save_model(directory / f"model-{number}", seed=number, chat=True) for number in range(3)]
        self.harness = WorkerHarness(directory, self.models[2])
        self.harness.begin([], tensors_of(self.models[0]))
        self.harness.publish(1, tensors_of(self.models[1]))
        self.run_dir = self.harness.config.run.dir

    def export(
        self, version: str, target: Path | str, *words: str, code: int = DONE, crash_at: str = "", **variables: str
    ) -> str:
        """Exports as a user does; returns what was printed."""
        command = [sys.executable, "-m", "echo_queue", "export", str(self.harness.path), version, str(target), *words]
        environ = {**os.environ, **variables, **({VARIABLE: crash_at} if crash_at else {})}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=DEADLINE_S, env=environ, cwd=self.directory
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def published_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishedRun]:
    published_run = PublishedRun(tmp_path_factory.mktemp("published"))
    yield published_run
    published_run.harness.end()


def same(folder: Path, model: Path) -> bool:
    """Returns whether plain transformers computes with both folders alike."""
    with torch.no_grad():
        found, expected = (AutoModelForCausalLM.from_pretrained(one)(TOKENS).logits for one in (folder, model))
    return torch.allclose(found, expected, atol=1e-5, rtol=0)


def test_a_version_becomes_a_folder_that_a_killed_export_leaves_as_it_was(
    published_run: PublishedRun, tmp_path: Path
) -> None:
    """… nothing, or the export before; and whose place the next export takes whole."""
    folder = tmp_path / "out" / "model"
    published_run.export("1.0", folder, code=CRASHED, crash_at="write export")
    assert not folder.exists()
    assert published_run.export("1.0", folder).splitlines()[-1] == str(folder)
    assert same(folder, published_run.models[0])
    assert not same(folder, published_run.models[1])
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert mark_of(folder) == Mark("test", "1.0", adapter=False)
    assert "version 1.0 of the run `test`, after 0 updates" in (folder / "README.md").read_text()
    assert [one.name for one in folder.parent.iterdir()] == ["model"], "nothing is left beside it"

    published_run.export("1", folder, code=CRASHED, crash_at="write export")
    assert same(folder, published_run.models[0])
    published_run.export("1", folder)
    assert same(folder, published_run.models[1])
    assert mark_of(folder) == Mark("test", "1.1", adapter=False)
    assert [one.name for one in folder.parent.iterdir()] == ["model"], "nothing is left beside it"
    assert not (published_run.run_dir / "evals").exists(), "weights are not kept twice"


def test_a_version_goes_to_a_bucket_and_to_the_hub_as_the_same_folder(
    published_run: PublishedRun, tmp_path: Path, s3_servers: Callable[[str], Server]
) -> None:
    endpoint, hub = s3_servers("rclone").endpoint(BUCKET), HubServer()
    assert endpoint.access_key and endpoint.secret_key
    address = f"s3://{BUCKET}/models/{tmp_path.name}"
    aws = {
        "AWS_ENDPOINT_URL_S3": endpoint.url,
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
    }
    push = ("--push", "lab/model", "--public")
    with serving(hub) as hub.url:
        known = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        told = published_run.export("1.1", address, *push, **aws, **known)
    assert told.splitlines()[-2:] == [address, f"{hub.url}/lab/model/commit/{1:040x}"]
    read = tmp_path / "read"
    ObjectStore(endpoint, "").download_folder(f"models/{tmp_path.name}", read)
    assert same(read, published_run.models[1])
    assert mark_of(read) == Mark("test", "1.1", adapter=False)
    assert "--push lab/model --public" in (read / "README.md").read_text()
    files = {path.name: path.read_bytes() for path in read.iterdir()}
    assert hub.files["lab/model"] == {".gitattributes": b"", **files}
    assert (hub.private["lab/model"], hub.commits) == (False, [f"test 1.1, exported by echo-queue {__version__}"])
    exports = published_run.run_dir / EXPORTS
    assert not list(exports.iterdir()), "nothing is left here"

    standing = save_model(exports / "1.9", seed=3)  # which the learner has exported, and is not in the store any more
    Mark("test", "1.9", adapter=False).write(standing)
    published_run.export("1.9", f"{address}/1.9", "--within-run", **aws)
    ObjectStore(endpoint, "").download_folder(f"models/{tmp_path.name}/1.9", read)
    assert same(read, standing)
    shutil.rmtree(exports)


@pytest.mark.parametrize(
    ("target", "words", "what"),
    [
        ("", (), "DIR: is missing: the export would go nowhere"),
        ("model", ("--public",), "--public: means nothing without --push"),
        ("s3://bucket", (), "s3://bucket: names no folder of a bucket"),
        ("", ("--push", "model"), "--push: 'model' is no repository of the hub"),
        ("", ("--push", "lab/model"), "--push: there is no token of the hub"),
    ],
)
def test_a_destination_that_cannot_be_is_refused_before_anything_is_fetched(
    published_run: PublishedRun, tmp_path: Path, target: str, words: tuple[str, ...], what: str
) -> None:
    """… so not even the version is looked for."""
    where = str(tmp_path / target) if target == "model" else target
    told = published_run.export("1.7", where, *words, code=REFUSED, HF_TOKEN="", HF_HOME=str(tmp_path / "hub"))
    assert what in told and "→" in told
    assert not list(tmp_path.iterdir())


def test_final_and_base_and_best_are_versions_too(published_run: PublishedRun, tmp_path: Path) -> None:
    published_run.export("base", tmp_path / "base")
    assert same(tmp_path / "base", published_run.models[2])
    assert "the run has no final model" in published_run.export("final", tmp_path / "final", code=REFUSED)
    save_model(published_run.run_dir / "model", seed=7)
    published_run.export("final", tmp_path / "final")
    assert same(tmp_path / "final", published_run.run_dir / "model")
    assert "final has no adapters" in published_run.export("final", tmp_path / "x", "--adapter", code=REFUSED)

    assert "no version has been evaluated yet" in published_run.export("best", tmp_path / "best", code=REFUSED)
    results = [
        EvaluationResult(
            evaluation="held", version=Version(1, number), round=number, update=number, prompts=3, samples=1, mean=mean
        )
        for number, mean in enumerate((0.25, 0.5, 0.5))
    ]
    EvaluationRecord(published_run.run_dir).add([one.line for one in results])
    published_run.export("best", tmp_path / "best")
    assert mark_of(tmp_path / "best") == Mark("test", "1.1", adapter=False)
    assert same(tmp_path / "best", published_run.models[1])


def test_a_version_that_is_not_stored_is_told_with_those_that_are(published_run: PublishedRun, tmp_path: Path) -> None:
    """One that the learner has exported is still there."""
    for version, what in (
        ("1.7", "version 1.7 is not stored: it was pruned, perhaps just now, or never published"),
        ("7", "no version of number 7 is stored: it was pruned, or never published"),
    ):
        told = published_run.export(version, tmp_path / "model", code=REFUSED)
        assert what in " ".join(told.split())
        assert "choose one that is: 1.1, 1.0" in told
    assert not list(tmp_path.iterdir())
    exported = save_model(published_run.run_dir / EXPORTS / "1.7", seed=3)
    Mark("test", "1.7", adapter=False).write(exported)
    for version in ("1.7", "7"):
        published_run.export(version, tmp_path / "model")
        assert same(tmp_path / "model", exported)


@pytest.mark.parametrize(
    ("version", "words", "what"),
    [
        ("newest", (), "VERSION: 'newest' is no version of a run"),
        ("Qwen/Qwen3-8B", (), "is no version of a run"),
        ("1.1", ("--adapter",), "--adapter: has no adapters: the run trains all weights"),
    ],
)
def test_what_is_no_version_is_refused_with_what_is(
    published_run: PublishedRun, tmp_path: Path, version: str, words: tuple[str, ...], what: str
) -> None:
    assert what in published_run.export(version, tmp_path / "model", *words, code=REFUSED)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_no_export_is_left_as_it_is(published_run: PublishedRun, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "file").touch()
    told = published_run.export("1.1", tmp_path, code=REFUSED)
    assert "is no exported model, and is left as it is" in " ".join(told.split())
    told = published_run.export("1.1", tmp_path / "file" / "model", code=REFUSED)
    assert "Not a directory" in told
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "notes.txt"]
    assert not (tmp_path / FILE).exists()
