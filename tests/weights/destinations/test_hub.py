"""A folder becomes one commit of a repository, by the hub's real client; what is wrong with one is one sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants as hub_constants
import pytest
from huggingface_hub import HfApi

from echo_queue.errors import EchoQueueError
from echo_queue.models.exported import FILE, Mark
from echo_queue.weights.destinations import hub as module
from echo_queue.weights.destinations.hub import HubRepository
from tests.http_server import serving
from tests.servers.ports import free_port
from tests.weights.destinations.hub_server import LARGE_BYTES, TOKEN, HubServer

NAME = "somebody/model"
WEIGHTS = bytes(range(256))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A hub, and the variables of a user who is known there."""
    server = HubServer()
    with serving(server) as url:
        server.url = url
        monkeypatch.setattr(hub_constants, "ENDPOINT", url)
        monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "no-login"))
        monkeypatch.setattr(module, "PAUSE_S", 0.0)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    (made / "adapter").mkdir(parents=True)
    (made / "README.md").write_text("---\ntags: [echo-queue]\n---\n")
    (made / "model.safetensors").write_bytes(WEIGHTS)
    (made / "adapter" / "adapter_config.json").write_text("{}")
    Mark("test", "1.7", adapter=False).write(made)
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(name: str = NAME, *, public: bool = False) -> str:
    with pytest.raises(EchoQueueError) as caught:
        HubRepository.of(name, public=public).require()
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_a_folder_becomes_one_commit_of_a_private_repository(hub: HubServer, folder: Path) -> None:
    repository, told = HubRepository.of(NAME, public=False), list[str]()
    repository.require()
    assert not hub.files, "the check changes nothing"
    address = repository.upload(folder, "version 1.7", told.append)
    assert address == f"{hub.url}/{NAME}/commit/{1:040x}"
    assert hub.files[NAME] == {".gitattributes": b"", **contents(folder)}
    assert len(WEIGHTS) > LARGE_BYTES and any("PUT /storage/" in one for one in hub.asked)
    assert (hub.private, hub.commits, told) == ({NAME: True}, ["version 1.7"], [])


def test_an_export_takes_the_place_of_another_one_in_one_commit(hub: HubServer, folder: Path) -> None:
    hub.add("lab/model", [FILE, "model-00001-of-00002.safetensors", "old/tokenizer.json"], private=False)
    repository = HubRepository.of("lab/model", public=True)
    repository.require()
    repository.upload(folder, "version 1.8", print)
    assert hub.files["lab/model"] == {".gitattributes": b"", **contents(folder)}
    assert hub.commits == ["version 1.8"]


def test_what_may_pass_is_tried_again_and_told(hub: HubServer, folder: Path) -> None:
    hub.refuse_commits, told = [500, 429], list[str]()
    HubRepository.of(NAME, public=False).upload(folder, "version 1.7", told.append)
    assert hub.files[NAME] == {".gitattributes": b"", **contents(folder)}
    assert [one.partition(":")[0] for one in told] == [f"attempt {number} of 5 to push failed" for number in (1, 2)]
    assert "refuses somebody/model: 500 not now" in told[0]


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub: HubServer, folder: Path) -> None:
    hub.lose_answers, told = 1, list[str]()
    HubRepository.of(NAME, public=False).upload(folder, "version 1.7", told.append)
    assert hub.files[NAME] == {".gitattributes": b"", **contents(folder)}
    assert (len(told), hub.commits) == (1, ["version 1.7"])


def test_an_upload_that_breaks_off_is_tried_again(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """… whatever it is that the client raises then."""
    told, commit = list[str](), HfApi.create_commit
    broken = [RuntimeError("the storage is away"), ConnectionError("reset")]

    def breaking(self: HfApi, *words: Any, **options: Any) -> Any:
        if broken:
            raise broken.pop(0)
        return commit(self, *words, **options)

    monkeypatch.setattr(HfApi, "create_commit", breaking)
    HubRepository.of(NAME, public=False).upload(folder, "version 1.7", told.append)
    assert [one.rpartition(": ")[2] for one in told] == ["the storage is away", "reset"]
    assert hub.files[NAME] == {".gitattributes": b"", **contents(folder)}


def test_what_will_not_pass_is_tried_once(hub: HubServer, folder: Path) -> None:
    hub.refuse_commits, told = [403], list[str]()
    with pytest.raises(EchoQueueError, match=r"the token may not write to somebody/model: not now\n.*HF_TOKEN"):
        HubRepository.of(NAME, public=False).upload(folder, "version 1.7", told.append)
    assert (told, hub.commits) == ([], [])
    hub.refuse_commits = [503] * module.ATTEMPTS
    with pytest.raises(EchoQueueError, match=r"refuses somebody/model: 503 not now\n.*try again later"):
        HubRepository.of(NAME, public=False).upload(folder, "version 1.7", told.append)
    assert (len(told), hub.commits) == (module.ATTEMPTS - 1, [])


@pytest.mark.parametrize("name", ["model", "a/b/c", "a b/c", "a/b..c", "/tmp/model", "a/", ""])
def test_a_name_that_no_repository_may_have_is_refused(name: str) -> None:
    with pytest.raises(EchoQueueError, match=r"--push: .* is no repository of the hub\n.*write OWNER/NAME"):
        HubRepository.of(name, public=False)


@pytest.mark.usefixtures("hub")
def test_a_token_that_is_missing_unknown_or_may_not_write_is_told(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the token may not write as other, only as somebody, lab" in refused("other/model")
    hub.role = "read"
    assert "the token may read and not write\n    → set HF_TOKEN to a token that may write" in refused()
    hub.add(NAME, [FILE])
    assert "the token may read and not write" in refused()
    monkeypatch.setenv("HF_TOKEN", "hf_unknown")
    assert "the hub does not know this token\n    → set HF_TOKEN" in refused()
    monkeypatch.delenv("HF_TOKEN")
    assert "there is no token of the hub\n    → set HF_TOKEN to a token that may write, or log in" in refused()
    assert not hub.commits


def test_a_repository_with_other_content_or_another_visibility_is_left_as_it_is(hub: HubServer) -> None:
    hub.add(NAME, ["README.md"])
    assert f"{NAME} has other content, and is left as it is: there is no {FILE} in it" in refused()
    hub.add(NAME)
    assert f"--public: {NAME} is private, and stays so" in refused(public=True)
    hub.add(NAME, private=False)
    assert f"{NAME} is public, and all could read what is pushed" in refused()
    assert not hub.commits


@pytest.mark.usefixtures("hub")
def test_a_hub_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_constants, "ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert "does not answer: " in (told := refused()) and "→ check the network, its proxy and HF_ENDPOINT" in told
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE keeps the hub away\n    → unset HF_HUB_OFFLINE" in refused()
