"""The fingerprint by which machines notice that their base models differ."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from echo_queue.config import Config
from echo_queue.models.fingerprint import fingerprint
from tests.learner.learner_harness import make_base

WEIGHTS = "model.safetensors"


def fingerprint_of(folder: Path) -> str:
    return fingerprint(Config.model_validate({"run": {"name": "t", "dir": "t"}, "model": {"base": str(folder)}}))


def test_machines_with_the_same_files_have_the_same_fingerprint(tmp_path: Path) -> None:
    for name in ("here", "there"):
        make_base(tmp_path / name)
    assert fingerprint_of(tmp_path / "here") == fingerprint_of(tmp_path / "there")


def test_other_weights_and_another_configuration_are_noticed_and_missing_files_are_said(tmp_path: Path) -> None:
    make_base(tmp_path)
    found = [fingerprint_of(tmp_path)]
    tensors = load_file(tmp_path / WEIGHTS)
    save_file({name: tensor + torch.ones_like(tensor) for name, tensor in tensors.items()}, tmp_path / WEIGHTS)
    found.append(fingerprint_of(tmp_path))
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("{", '{"rope_theta": 7,', 1))
    found.append(fingerprint_of(tmp_path))
    (tmp_path / WEIGHTS).unlink()
    found.append(fingerprint_of(tmp_path))
    assert len(set(found)) == 4
    assert found[-1].startswith("none: ") and "safetensors" in found[-1]
