"""A run of each unlike family: what the learner trains and publishes is what the workers generate with."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.learner.model.families import family_model
from tests.pipeline.supervised_run import SupervisedRun, assert_every_prompt_was_trained_once, assert_no_lag
from tests.source_code import ROOT

pytestmark = [pytest.mark.proof(kind="whole runs", share=0.15), pytest.mark.timeout(1200)]
REWARD = """
def letters(completions, **_):
    return [sum(map(str.isalpha, str(one))) / max(1, len(str(one))) for one in completions]
"""


@pytest.mark.parametrize("family", ["gemma3", "qwen3_moe", "gpt_oss"])
def test_learner_and_workers_agree_after_every_update(
    family: str, base: Path, tmp_path: Path, start: Callable[..., SupervisedRun]
) -> None:
    """Without lag, both sides' log-probabilities are of the same weights: they differ by rounding alone."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    family_model(family, vocab_size=len(tokenizer), initializer_range=0.02, **ends).save_pretrained(tmp_path / family)
    tokenizer.save_pretrained(tmp_path / family)
    (tmp_path / "reward.py").write_text(REWARD, encoding="utf-8")
    run = start(
        ECHO_QUEUE_MODEL__BASE=str(tmp_path / family),
        ECHO_QUEUE_ROLLOUT__MODE="sync",
        ECHO_QUEUE_ROLLOUT__WORKERS="1",
        ECHO_QUEUE_STALENESS__S="0",
        ECHO_QUEUE_LEARNER__LR="0.003",
        ECHO_QUEUE_ENVIRONMENT__KIND="function",
        ECHO_QUEUE_ENVIRONMENT__FUNCTION="reward:letters",
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]),
    )
    assert run.ends() == 0, run.told()
    assert_no_lag(run)
    assert_every_prompt_was_trained_once(run)
    assert all(abs(update.kl_behaviour) < 1e-4 for update in run.updates())
    assert sum(update.grad_norm > 0.01 for update in run.updates()) > 10, "the weights changed"
