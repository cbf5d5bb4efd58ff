"""On one machine, each worker of a run has a GPU and a port of its own where there are enough; else it is said."""

import re
from pathlib import Path

import pytest

from echo_queue.cli.run import placement
from echo_queue.cli.run.roles import workers
from echo_queue.config import Config
from echo_queue.fleet.invitation import machine
from echo_queue.fleet.invitation.machine import Gpu
from tests.models import MODELS


@pytest.fixture(autouse=True)
def torch_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "torch_cuda", lambda: 12)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Gives this machine so many GPUs, as far as the driver says."""
    found = [Gpu(str(index), "NVIDIA L4", 24 << 30, "580.65") for index in range(number)]
    monkeypatch.setattr(machine, "gpus", lambda: found)


ELSEWHERE: dict[str, dict[str, object]] = {
    "redis": {"url": "redis://host:6379/0"},
    "store": {"url": "https://s3", "bucket": "b"},
}


def config(**sections: dict[str, object]) -> Config:
    return Config.model_validate({"run": {"name": "r", "dir": "r"}, **sections})


@pytest.mark.parametrize(
    ("found", "count", "learner", "devices", "said"),
    [
        (4, 3, {}, ["1", "2", "3"], ""),
        (4, 2, {"ranks": 2}, ["2", "3"], ""),
        (2, 2, {"device": "cpu"}, ["0", "1"], ""),
        (2, 2, {}, ["1", "0"], "GPU 0 is shared by the learner and worker-2"),
        (2, 3, {"device": "cpu"}, ["0", "1", "0"], "GPU 0 is shared by worker-1 and worker-3"),
        (1, 2, {}, ["", ""], "GPU 0 is shared by the learner, worker-1 and worker-2"),
        (1, 1, {"device": "cpu"}, [""], ""),
        (0, 2, {}, ["", ""], ""),
    ],
)
def test_each_worker_has_a_gpu_of_its_own_where_there_are_enough_and_else_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
    *,
    found: int,
    count: int,
    learner: dict[str, object],
    devices: list[str],
    said: str,
) -> None:
    gpus(monkeypatch, found)
    run = config(rollout={"workers": count}, learner=learner)
    assert [place.device for place in placement.of_run(run)] == devices
    assert [problem.what for problem in placement.sharing(run)] == ([said] if said else [])


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_who_shares_a_gpu_with_vllm_is_told_the_key_that_divides_it(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 1)
    (problem,) = placement.sharing(config(rollout={"engine": engine}))
    assert ("rollout.gpu_memory_utilization" in problem.fix) is (engine == "vllm")


@pytest.mark.parametrize(
    ("found", "count", "share", "refused"),
    [(1, 2, 0.9, True), (1, 2, 0.5, False), (2, 2, 0.9, False), (2, 3, 0.6, True), (0, 3, 0.9, False)],
)
def test_workers_that_together_want_more_than_their_gpu_are_refused(
    found: int, count: int, share: float, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, found)
    rollout = {"engine": "vllm", "workers": count, "gpu_memory_utilization": share}
    problems = list(placement.refusals(config(rollout=rollout, learner={"device": "cpu"})))
    assert [problem.where for problem in problems] == (["rollout.gpu_memory_utilization"] if refused else [])
    assert list(placement.refusals(config(rollout=rollout | {"engine": "transformers"}))) == []
    assert list(placement.refusals(config(rollout=rollout, **ELSEWHERE))) == []


def public_model(name: str, tmp_path: Path, engine: str = "vllm", **rollout: object) -> Config:
    """A run of a public model on short samples, with its config.json here."""
    (tmp_path / "config.json").write_bytes((MODELS / f"{name}.json").read_bytes())
    return config(
        model={"base": str(tmp_path), "dtype": "bfloat16", "max_prompt_tokens": 64, "max_new_tokens": 128},
        rollout={"engine": engine, "workers": 2, **rollout},
        learner={"micro_tokens": 2_048, "activation_checkpointing": "full"},
    )


def test_the_share_that_fits_beside_the_learner_is_named_and_then_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 1)
    (problem,) = placement.sharing(public_model("qwen3-0.6b", tmp_path))
    named = re.search(r"gpu_memory_utilization to ([\d.]+) or less, and ([\d.]+) or more", problem.fix)
    assert named and 0 < float(named[2]) <= float(named[1]) < 0.4
    for share, said in ((named[1], 0), (named[2], 0), (0.45, 1), (0.01, 1)):
        run = public_model("qwen3-0.6b", tmp_path, gpu_memory_utilization=float(share))
        assert len(list(placement.sharing(run))) == said


def test_it_is_said_that_no_share_suffices_and_what_an_engine_without_one_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, 1)
    (problem,) = placement.sharing(public_model("qwen3-4b", tmp_path))
    assert "name fewer workers here" in problem.fix and "0.00 of the GPU is left for each of these" in problem.fix
    (problem,) = placement.sharing(public_model("qwen3-4b", tmp_path, "transformers"))
    assert re.search(r"each worker takes up to \d+% of it, and 0% is left for each", problem.fix)


def test_a_run_takes_the_gpus_that_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    run = config(rollout={"workers": 2})
    shown = {"CUDA_VISIBLE_DEVICES": "3,1,2"}
    assert [place.device for place in placement.of_run(run, shown)] == ["1", "2"]
    assert list(placement.sharing(run, {"CUDA_VISIBLE_DEVICES": ""})) == []


def test_an_engine_that_asks_a_server_takes_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    http = {"engine": "http", "workers": 1, "http": {"url": "http://host:8000", "weights_dir": "w"}}
    assert list(placement.sharing(config(rollout=http))) == []


def test_the_program_of_a_placed_worker_begins_with_its_gpu_and_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    run = config(rollout={"workers": 2}, weights={"peer_port": 29600}, learner={"device": "cpu"})
    _, second = workers(run, Path("run.toml"))
    assert second.command[:3] == ("env", "CUDA_VISIBLE_DEVICES=1", "ECHO_QUEUE_WEIGHTS__PEER_PORT=29601")


def test_a_worker_that_has_nothing_of_its_own_begins_with_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    (only,) = workers(config(rollout={"workers": 1}), Path("run.toml"))
    assert only.command[1:3] == ("-P", "-m")
