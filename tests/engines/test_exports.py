"""An exported version is a base model like any other: engines open it, and draw what the learner would."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from echo_queue.config import Config, Learner
from learner.export.model_folder import write_version
from learner.model.loading import prepare
from learner.model.policy import Policy
from tests.engines import reference
from tests.engines.asking import ask, prompt, run
from tests.engines.conftest import IN_PROCESS, Opener
from tests.engines.models import open_model


@pytest.mark.parametrize("opener", IN_PROCESS, indirect=True)
def test_an_exported_version_is_drawn_from_as_the_learner_has_it(
    opener: Opener, folder: Path, newer: Path, tmp_path: Path
) -> None:
    config = Config.model_validate({"run": {"name": "t", "dir": str(tmp_path / "run")}, "model": {"base": str(folder)}})
    version, exported = tmp_path / "1.1.safetensors", tmp_path / "exported"
    save_file(dict(Policy(prepare(open_model(newer)), Learner()).snapshot()), version)
    write_version(config, folder, version, exported, adapter=False)
    read = prompt(40, 3)
    samples = run(opener(exported), ask("a", read, 60, samples=4))
    assert sum(len(sample.tokens) for sample in samples.values()) > 4
    for sample in samples.values():
        reference.assert_drawn_by({0: open_model(newer)}, read, sample)
