"""Promises of the `http` engine alone: whatever happens to the server, no sample has a token of other weights."""

import resource
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from echo_queue.errors import ConfigError, DeadlineError, EchoQueueError
from echo_queue.records import Span, Version
from echo_queue.weights.delta.codes import dtype_name
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import digest_of
from tests.engines import reference
from tests.engines.asking import ask, finish, prompt, step_until
from tests.engines.conftest import BASE, MAX_PROMPT, Opener
from tests.engines.models import LONGEST, open_model, parameters, save_model
from tests.engines.serving import ANSWER_S, KEY, PACKING, START_S, UNFIT, Servers, VllmServer
from tests.servers.ports import free_port
from workers.engines import Engine, Sampling
from workers.engines.http.checkpoint_files import CheckpointFiles
from workers.engines.http.engine import HttpEngine
from workers.engines.http.sample import seed_at
from workers.engines.http.server import Server
from workers.engines.http.server_weights import ServerAccess

LIMIT = LONGEST - MAX_PROMPT
ON_HTTP = pytest.mark.parametrize("opener", ["http"], indirect=True)


def open_at(
    url: str, folder: Path, directory: Path, *, deadline_s: float = ANSWER_S, key: str | None = None
) -> HttpEngine:
    place = ServerAccess(url, key, directory / "weights", deadline_s, checksums=True, streams=16)
    return HttpEngine(str(folder), BASE, place, dtype="float32", longest=LONGEST, trial=Sampling())


MANY = ask("a", prompt(9, 1), LIMIT, samples=8)


def assert_of_version_1(engine: Engine, newer: Path) -> None:
    partials = finish(engine)
    assert {partial_sample.spans for partial_sample in partials.values()} == {(Span(0, 1),)}
    for partial_sample in partials.values():
        assert len(partial_sample.tokens) == LIMIT
    for partial_sample in list(partials.values())[:4]:
        reference.assert_drawn_by({1: open_model(newer)}, prompt(9, 1), partial_sample)


@ON_HTTP
def test_a_server_that_was_killed_and_started_again_goes_on_with_the_weights_that_it_had(
    opener: Opener, endless: Path, newer: Path, servers: Servers, tmp_path: Path
) -> None:
    server = servers.of(endless)
    engine = open_at(server.url, endless, tmp_path, deadline_s=START_S)
    engine.load(Version(1, 1), parameters(newer))
    assert len(list((tmp_path / "weights").rglob("*.safetensors"))) == 1, "what it has now, and nothing older"
    engine.add(MANY)
    begun = len(step_until(engine, 1, MANY[0].key).tokens)
    server.kill()
    with pytest.MonkeyPatch.context() as hasty, pytest.raises(DeadlineError, match=r"not fixed within 1 s"):
        hasty.setattr(engine, "_deadline_s", 1.0)
        finish(engine)
    kept = engine.partials()[MANY[0].key]
    assert begun <= len(kept.tokens) < LIMIT, "what was drawn for certain is there, for another worker to go on"
    server.start()
    server.wait_ready()
    assert_of_version_1(engine, newer)
    engine.close()
    assert not list((tmp_path / "weights").rglob("*.safetensors"))


@ON_HTTP
def test_tokens_of_a_server_that_forgot_its_weights_are_in_no_sample_and_in_no_partial(
    opener: Opener, endless: Path, newer: Path, servers: Servers
) -> None:
    """The server looks as after an unnoticed restart: it serves its own weights, under a fresh server's label."""
    engine, server = opener(endless), servers.of(endless)
    engine.load(Version(1, 1), parameters(newer))
    forget(server, endless)
    engine.add(MANY)
    before = engine.sampled
    while engine.sampled == before:
        engine.step()
    assert {len(partial_sample.tokens) for partial_sample in engine.partials().values()} == {0}
    assert_of_version_1(engine, newer)


def forget(server: VllmServer, folder: Path) -> None:
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    server.post("/update_weight_version", {"new_version": "default"})
    server.post("/collective_rpc", reload)


@ON_HTTP
def test_a_server_that_others_load_is_one_clear_error(opener: Opener, endless: Path, servers: Servers) -> None:
    engine = opener(endless)
    servers.of(endless).post("/update_weight_version", {"new_version": "theirs"})
    engine.add(MANY)
    with pytest.raises(EchoQueueError, match=r"another client, under the label 'theirs'"):
        finish(engine)
    opener.close()


@ON_HTTP
@pytest.mark.parametrize("changed", ["settings", "parameters"])
def test_a_server_that_comes_back_otherwise_is_one_clear_error(
    opener: Opener, endless: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """The engine's memory of the server is changed instead of the server, whose restart takes half a minute."""
    engine = opener(endless)
    assert isinstance(engine, HttpEngine)
    if changed == "settings":
        monkeypatch.setattr(engine, "_settings", engine._settings._replace(logprobs_mode="raw_logprobs"))
    else:
        monkeypatch.setattr(engine._weights, "_reported", {"tp0:lm_head.weight": "0" * 64})
    forget(servers.of(endless), endless)
    engine.add(MANY)
    with pytest.raises(EchoQueueError, match=r"was started again[\s\S]*start it as it was started before"):
        finish(engine)
    opener.close()


def test_a_checkpoint_for_which_there_is_no_room_is_one_clear_error(endless: Path, tmp_path: Path) -> None:
    state = parameters(endless)
    files = CheckpointFiles(tmp_path, "http://127.0.0.1:8000", state)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(ConfigError, match=r"rollout\.http\.weights_dir: .*cannot be written"):
            files.put(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.rglob("*.safetensors"))
    assert files.put(state).is_relative_to(tmp_path)


@ON_HTTP
def test_a_load_of_other_bytes_than_were_given_is_noticed(
    opener: Opener, endless: Path, newer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, tensors = opener(endless), parameters(newer)
    infos = [
        TensorInfo(name, dtype_name(tensor), tuple(tensor.shape), digest_of(tensor)) for name, tensor in tensors.items()
    ]
    engine.load(Version(1, 1), tensors)
    assert all(engine.holds(info) for info in infos)
    assert not engine.holds(replace(infos[0], digest=infos[1].digest))
    reload = Server.reload
    monkeypatch.setattr(Server, "reload", lambda server, folder: reload(server, str(endless)))
    engine.load(Version(1, 2), tensors)
    ones = {name for name, tensor in tensors.items() if bool((tensor == 1).all())}
    assert ones == {info.name for info in infos if engine.holds(info)}, "norms are the same in both models"


def test_all_settings_that_do_not_fit_are_named_at_once(servers: Servers, endless: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        open_at(servers.of(endless, **UNFIT).url, endless, tmp_path)
    problems = [str(problem) for problem in raised.value.problems]
    assert len(problems) == 3
    for words in ("--logprobs-mode processed_logprobs", "--max-model-len 512", "bfloat16, model.dtype is float32"):
        assert any(words in problem for problem in problems), words


def test_a_server_whose_routes_are_off_is_told_how_to_start(
    servers: Servers, endless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.engines.http.engine.unfit", lambda *_: ())
    with pytest.raises(ConfigError, match=r"--enable-scale-out"):
        open_at(servers.of(endless, **UNFIT).url, endless, tmp_path)


def test_a_server_that_would_serve_a_stale_output_layer_is_refused(
    servers: Servers, endless: Path, tmp_path: Path
) -> None:
    """vLLM on CPUs, as it comes, with a tied model."""
    url = servers.of(endless, **PACKING).url
    with pytest.raises(ConfigError, match=r"401.*[Uu]nauthorized"):
        open_at(url, endless, tmp_path)
    with pytest.raises(ConfigError, match=r"not of the weights it was given[\s\S]*PlainWeights"):
        open_at(url, endless, tmp_path, key=KEY)


def test_another_model_than_the_servers_is_refused(servers: Servers, endless: Path, tmp_path: Path) -> None:
    url, fewer = servers.of(endless, **PACKING).url, save_model(tmp_path / "fewer", 1, num_hidden_layers=1)
    with pytest.raises(ConfigError, match=r"not of the weights it was given"):
        open_at(url, fewer, tmp_path, key=KEY)
    wider = save_model(tmp_path / "wider", 1, hidden_size=64)
    with pytest.raises(ConfigError, match=r"does not take the weights of"):
        open_at(url, wider, tmp_path, key=KEY)


def test_what_is_no_vllm_server_is_refused_at_once(endless: Path, tmp_path: Path) -> None:
    other = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with pytest.raises(ConfigError, match=r"rollout\.http\.url: .*answers 501[\s\S]*vllm serve"):
        open_at(f"http://127.0.0.1:{other.server_port}", endless, tmp_path)
    other.shutdown()


def test_a_server_that_does_not_answer_is_waited_for_and_then_refused(endless: Path, tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(ConfigError, match=r"rollout\.http\.url: .*not fixed within 1 s"):
        open_at(f"http://127.0.0.1:{port}", endless, tmp_path, deadline_s=1.0)


def test_a_sample_taken_up_elsewhere_draws_with_other_numbers() -> None:
    seeds = {seed_at(seed, place) for seed in range(3) for place in range(200)}
    assert len(seeds) == 600 and all(0 <= seed < 1 << 63 for seed in seeds)
