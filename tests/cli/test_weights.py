"""`echo-queue weights`: what is listed, shown, verified, copied and removed is what the run's learner published."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from echo_queue import failpoints
from echo_queue.cli.commands import app
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_store
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError
from echo_queue.launch.servers.serving import Services
from echo_queue.queue import RunKeys, RunRules
from echo_queue.records import Version
from echo_queue.weights import Route, SignatureVerifier, Signer, WeightPublisher
from echo_queue.weights.catalogue import catalogue
from tests.queue.clients import Clients
from tests.weights.published_weights import history, same

TOML = """
[run]
name = "published"
dir = "{directory}"
[staleness]
s = 0
[weights]
anchor_every = 2
encrypt = true
"""
VERSIONS = history(9)


class PublishedRun:
    """A run with ten versions, published and pruned by hand."""

    def __init__(self, directory: Path) -> None:
        self.signer = Signer.generate()
        self.path = directory / "run.toml"
        self.path.write_text(TOML.format(directory=directory / "run"))
        self.config: Config = load(self.path)
        self.services = Services(self.config)
        self.services.start()
        self.store: ObjectStore = connect_store(self.config, "learner")
        self.publish()

    def publish(self) -> None:
        Clients.connected_as(self.config, "admin").configure(RunRules.of(self.config))
        queue, signer = Clients.connected_as(self.config, "learner"), self.signer
        lineage = queue.resume().lineage
        trust = RunKeys(signer.public_key, signer.secret("tokens"), signer.secret("chunks"))
        queue.publish_keys(lineage, trust)
        weight_publisher = WeightPublisher(
            self.store, "published", signer, self.config.weights, chunk_key=trust.chunk_key
        )
        for number, tensors in enumerate(VERSIONS):
            queue.publish(lineage, weight_publisher.publish(Version(lineage, number), tensors, "float32"))
            weight_publisher.further(Version(lineage, number))

    def ask(self, command: str, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["weights", command, str(self.path), *words], catch_exceptions=False)
        assert done.exit_code == code, done.output
        return done.output


@pytest.fixture(scope="module")
def published_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishedRun]:
    published_run = PublishedRun(tmp_path_factory.mktemp("published"))
    yield published_run
    published_run.services.stop()


def test_ls_tells_each_version_and_how_it_is_reached(published_run: PublishedRun) -> None:
    found = {one["version"]: one for one in json.loads(published_run.ask("ls", "--json"))}
    assert list(found) == [f"1.{number}" for number in range(10)]
    assert [version for version, one in found.items() if one["latest"]] == ["1.9"]
    assert set(found["1.8"]["routes"]) == {f"from-0001.{base:08d}" for base in (7, 6, 4, 0)} | {"full"}
    assert found["1.8"]["routes"]["from-0001.00000007"]["main"]
    told = published_run.ask("ls")
    assert "latest" in told
    assert "whole" in told


def test_show_tells_a_version_tensor_by_tensor(published_run: PublishedRun) -> None:
    told = published_run.ask("show", "1.3")
    assert "the difference to 1.2" in told
    assert "layers.5" in told
    assert "= embedding" in told
    assert json.loads(published_run.ask("show", "--json"))["number"] == 9


def test_a_fetched_file_holds_the_published_tensors(published_run: PublishedRun, tmp_path: Path) -> None:
    file = tmp_path / "new" / "weights.safetensors"
    assert str(file) in published_run.ask("fetch", "1.7", "--to", str(file))
    assert same(load_file(file), VERSIONS[7])
    assert list(file.parent.iterdir()) == [file]
    other = file.with_name("other")
    other.touch()
    assert file.stat().st_mode == other.stat().st_mode, "whoever may read a new file may read it"


class PrunedMeanwhile:
    """Removes a version before the n-th request to the store of the command, which never sees the removal."""

    def __init__(self, run: PublishedRun, version: Version, number: int) -> None:
        self._store, self._entry, self._left = run.store, catalogue(run.store, version.lineage)[version], number
        self._removed: dict[str, bytes] = {}

    @property
    def came(self) -> bool:
        return bool(self._removed)

    def before(self, step: str, about: object) -> None:
        if step.partition(" ")[0] not in ("get", "list", "stream"):
            return
        self._left -= 1
        if not self._left:
            failpoints.observer = None
            self._removed = {key: self._store.get(key) for key in self._entry.keys}
            self._store.delete(self._entry.keys)

    def after(self, step: str, about: object, answer: object) -> None:
        pass

    def put_back(self) -> None:
        for key, data in self._removed.items():
            self._store.put(key, data)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "fetch", "show"])
def test_a_version_that_is_pruned_while_it_is_read_is_told_in_one_sentence(
    published_run: PublishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Whenever that is: the command ends well, or with that sentence."""
    words = ("--to", str(tmp_path / "weights")) if command == "fetch" else ()
    refused = 0
    for number in count(1):
        pruned = PrunedMeanwhile(published_run, Version(1, 6), number)
        monkeypatch.setattr(failpoints, "observer", pruned)
        done = CliRunner().invoke(app, ["weights", command, str(published_run.path), "1.6", *words])
        monkeypatch.setattr(failpoints, "observer", None)
        pruned.put_back()
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            assert isinstance(done.exception, EchoQueueError), number
            [problem] = done.exception.problems
            assert problem.what.startswith("version 1.6 is not stored: it was pruned"), number
            refused += 1
        if not pruned.came:
            break
    assert refused and done.exit_code == 0


def test_verify_finds_a_spoiled_object_and_names_it(published_run: PublishedRun) -> None:
    told = published_run.ask("verify", "1.6")
    assert "✗" not in told
    assert "makes all tensors from 1.4" in told
    assert "3 of 3 routes decoded" in told
    key = next(
        one.key for one in published_run.store.list("weights/0001/00000006/from-0001.00000004/") if ".part" in one.key
    )
    data = published_run.store.get(key)
    published_run.store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    told = published_run.ask("verify", "1.6", code=1)
    published_run.store.put(key, data)
    assert "✗ from-0001.00000004" in told
    assert "✓ from-0001.00000005" in told


def test_verify_decodes_each_route_so_that_one_that_lacks_something_is_found(published_run: PublishedRun) -> None:
    """All of its bytes are as they were signed."""
    key = "weights/0001/00000006/from-0001.00000004/route.json"
    envelope = published_run.store.get(key)
    verifier = SignatureVerifier(published_run.signer.public_key)
    route = Route.decode(verifier.open(envelope, key), key)
    published_run.store.put(key, published_run.signer.sign(replace(route, parts=()).encode()))
    told = published_run.ask("verify", "1.6", code=1)
    published_run.store.put(key, envelope)
    assert "✗ from-0001.00000004" in told
    assert "2 of 3 routes decoded" in told


def test_gc_says_what_it_would_remove_and_then_removes_that(published_run: PublishedRun) -> None:
    assert "would be removed: 1.0, 1.1, 1.2, 1.3" in published_run.ask("gc", "--dry-run")
    assert "1.0" in published_run.ask("ls")
    assert "removed: 1.0, 1.1, 1.2, 1.3" in published_run.ask("gc")
    assert {one["version"] for one in json.loads(published_run.ask("ls", "--json"))} == {
        f"1.{number}" for number in range(4, 10)
    }
    assert "✗" not in published_run.ask("verify")
    told = published_run.ask("verify", "1.8")
    assert "not decoded, as version 1.0 is not stored any more" in told
    assert "4 of 5 routes decoded" in told


@pytest.mark.parametrize(("name", "told"), [("seven", "is not a version"), ("1.77", "is not stored")])
def test_a_version_that_is_none_is_one_clear_error(published_run: PublishedRun, name: str, told: str) -> None:
    with pytest.raises(EchoQueueError, match=told):
        published_run.ask("show", name)
