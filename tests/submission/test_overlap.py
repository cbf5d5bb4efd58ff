"""Who holds prompts out that are trained as well is told so, with their number, before anything runs."""

from pathlib import Path

import orjson
import pytest

from echo_queue.config import Config
from echo_queue.submission import overlap
from echo_queue.submission.overlap import trained_too


def lines(path: Path, prompts: list[object]) -> str:
    path.write_bytes(b"".join(orjson.dumps({"prompt": prompt}) + b"\n" for prompt in prompts))
    return str(path)


def configured(prompts: dict[str, object], *evaluations: dict[str, object]) -> Config:
    held_out = [{"name": f"held-{number}"} | evaluation for number, evaluation in enumerate(evaluations)]
    run = {"name": "t", "dir": "runs/t"}
    return Config.model_validate({"run": run, "prompts": {"set": "train"} | prompts, "evaluation": held_out})


def test_prompts_that_are_also_trained_are_counted_for_each_held_out_set(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    trained = lines(tmp_path / "train.jsonl", [*(f"prompt {number}" for number in range(120)), chat])
    new = lines(tmp_path / "new.jsonl", ["prompt 120", [{"role": "system", "content": "Hi"}]])
    old = lines(tmp_path / "old.jsonl", ["prompt 120", "prompt 119", chat])
    (found,) = trained_too(configured({"source": trained}, {"source": new}, {"source": old}))
    assert found.where == "evaluation[1].source"
    assert found.what == "2 of the first 3 of held-1 are also in train, and trained"


def test_no_more_prompts_are_read_than_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "MOST", 100)
    source = lines(tmp_path / "train.jsonl", [f"prompt {number}" for number in range(240)])
    (found,) = trained_too(configured({"source": source}, {"source": source}))
    assert found.what == "100 of the first 100 of held-0 are also in train, and trained"


def test_another_seed_that_draws_the_same_items_is_told_with_one_that_does_not() -> None:
    def made(seed: int) -> dict[str, object]:
        return {"source": "reasoning-gym:chain_sum", "options": {"size": 60, "seed": seed, "min_digits": 8}}

    wide = {"max_digits": 9}
    trained = made(1)
    trained["options"] |= wide  # type: ignore[operator]
    held_out = [made(seed) for seed in (2, 61)]
    for one in held_out:
        one["options"] |= wide | {"size": 20}  # type: ignore[operator]
    (found,) = trained_too(configured(trained, *held_out))
    assert (found.where, found.fix.partition(": ")[2]) == ("evaluation[0].source", "set options.seed to 61 or more")


def test_a_set_that_cannot_be_read_is_told_by_whoever_checks_it(tmp_path: Path) -> None:
    source = lines(tmp_path / "train.jsonl", ["prompt"])
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": ""}\n')
    none = {"source": str(tmp_path / "none.jsonl")}
    assert not list(trained_too(configured({"source": source}, none, {"source": str(bad)}, {"source": ""})))
    assert not list(trained_too(configured(none, {"source": source})))
