"""A model card says what the run knows of the model, to a person and to the hub, and names no path and no prompt."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard, ModelCardData

from echo_queue.cli.inspect.card_facts import gather, license_of, told_source
from echo_queue.config import Config
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.records import Version
from echo_queue.reporting.metrics import MetricsLog
from echo_queue.reporting.model_card import CardFacts, card_of
from tests.synthetic import update

COMMAND = "echo-queue export run.toml 1.12 my-model"


def config(directory: Path, base: str = "lab/base", **sections: object) -> Config:
    values = {
        "run": {"name": "sums", "dir": directory / "run"},
        "model": {"base": base, "revision": "abc"},
        "redis": {"url": "redis://127.0.0.1:9"},
        "store": {"url": "http://127.0.0.1:9", "bucket": "b"},
        "prompts": {"source": str(directory / "secret-place" / "sums.jsonl")},
    }
    return Config.model_validate(values | sections)


def result(number: int, mean: float | None, lineage: int = 1, name: str = "held") -> EvaluationResult:
    bounds = (None, None) if mean is None else (mean - 0.1, mean + 0.1)
    return EvaluationResult(
        evaluation=name,
        version=Version(lineage, number),
        round=number,
        update=number,
        prompts=20,
        samples=4,
        mean=mean,
        low=bounds[0],
        high=bounds[1],
        pass_at={"4": 0.9},
    )


def facts(**known: object) -> CardFacts:
    updates = [update(number, sets={"prompts": 4}) for number in range(1, 21)]
    values = {"model": "1.12", "version": Version(1, 12), "command": COMMAND, "updates": updates} | known
    return CardFacts(**values)  # type: ignore[arg-type]


def head(text: str) -> ModelCardData:
    data = ModelCard(text).data
    assert isinstance(data, ModelCardData)
    return data


def test_the_hub_reads_what_the_model_is(tmp_path: Path) -> None:
    known = facts(license={"license": "other", "license_name": "lab-1"})
    data = head(card_of(config(tmp_path), known))
    assert (data.base_model, data.license, data.license_name) == ("lab/base", "other", "lab-1")
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert (data.tags, data.get("base_model_relation")) == (["echo-queue", "reinforcement-learning"], "finetune")
    lora = config(tmp_path, model={"base": "lab/base", "lora": {"rank": 4}})
    data = head(card_of(lora, facts(adapter=True)))
    assert (data.library_name, data.get("base_model_relation")) == ("peft", "adapter")
    assert data.tags and "lora" in data.tags
    (tmp_path / "base").mkdir()
    for base in ("init", str(tmp_path / "base")):
        assert head(card_of(config(tmp_path, base), facts())).base_model is None


def test_a_person_reads_how_the_version_was_trained_and_judged(tmp_path: Path) -> None:
    """… by the updates and evaluations up to it, and not by those after it."""
    results = [result(0, 0.2), result(8, 0.5), result(12, None), result(16, 0.9), result(9, 0.3, lineage=2)]
    known = facts(sources={"prompts": "sums.jsonl"}, evaluations=results, chosen_by="held")
    text = card_of(config(tmp_path), known)
    assert "version 1.12 of the run `sums`, after 12 updates of reinforcement learning" in text
    assert "[lab/base](https://huggingface.co/lab/base) at revision `abc`" in text
    assert f"    {COMMAND}\n" in text
    assert "| `prompts` | `sums.jsonl` | 48 |" in text
    assert (
        "was 0.210 over the first 5 updates and 0.350 over the last 5 updates up to this version: 12 updates, " in text
    )
    assert "| `held` | 1.0 | 0.20 [0.10, 0.30] | 20 | 4 | pass@4 0.90 |" in text
    assert "| `held` | 1.8 | 0.50 [0.40, 0.60] | 20 | 4 | pass@4 0.90 |" in text
    assert "1.16" not in text and "2.9" not in text
    assert "The version was chosen by its mean on `held`" in text
    assert "| `learner.lr` | `1e-06` |" in text
    assert str(tmp_path) not in text and "secret-place" not in text


def test_the_base_model_was_not_trained(tmp_path: Path) -> None:
    text = card_of(config(tmp_path), facts(model="base", version=None))
    assert "nothing was trained" in text and "## Training" not in text


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    text = card_of(config(tmp_path, "init"), facts(model="final", version=None, updates=()))
    assert "the final model of the run `sums` of reinforcement learning" in text
    assert "Nothing was known of its updates" in text and "## Evaluation" not in text


def test_the_facts_are_those_of_the_runs_directory_where_redis_is_away(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    settings = config(tmp_path, str(base))
    log = MetricsLog(settings.run.dir / "metrics.jsonl")
    for number in range(1, 4):
        log.write(update(number, sets={"prompts": 4, "later": 1}))
    found = gather(settings, "final", "final", COMMAND, adapter=False)
    assert (found.trained, [one.version for one in found.past]) == (3, [1, 2, 3])
    assert found.sources == {"prompts": "sums.jsonl", "later": "?"}
    assert "after 3 updates" in card_of(settings, found)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("/home/me/a.jsonl", "a.jsonl"),
        ('parts/a.csv {"prompt": "q"}', "a.csv"),
        ("hf:lab/sums:main:train", "hf:lab/sums:main:train"),
        ("hf:/home/me/set:main:train", "hf:set:main:train"),
        ("s3://bucket/a/b.jsonl", "s3://bucket/a/b.jsonl"),
        ('reasoning-gym:basic_arithmetic {"seed": 1}', "reasoning-gym:basic_arithmetic"),
        ("mine:rows", "mine:rows"),
        ("", ""),
    ],
)
def test_a_source_is_told_without_the_folders_of_a_machine(source: str, told: str) -> None:
    assert told_source(source) == told


def test_the_license_is_what_the_base_models_folder_says(tmp_path: Path) -> None:
    settings = config(tmp_path, str(tmp_path))
    assert license_of(settings) == {}
    (tmp_path / "config.json").write_text('{"license": "mit"}')
    assert license_of(settings) == {"license": "mit"}
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\ntags: [a]\n---\n# A model\n")
    assert license_of(settings) == {"license": "apache-2.0"}
    (tmp_path / "README.md").write_text("---\nlicense: [broken\n---\n")
    assert license_of(settings) == {"license": "mit"}
