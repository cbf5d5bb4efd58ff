"""`echo-queue run` at the poker table, in step with the learner: what was trained is what was played."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.poker import Hand, Hands
from echo_queue.cli.inspect.show import tokenizer_of
from echo_queue.cli.transcript import Transcript, transcript
from echo_queue.reporting.trained_groups import in_directory
from tests.pipeline.supervised_run import (
    PROMPTS,
    TINY,
    SupervisedRun,
    assert_every_prompt_was_trained_once,
    assert_no_lag,
)

pytestmark = [pytest.mark.proof(kind="whole runs", share=0.15), pytest.mark.timeout(1200)]

OPTIONS: dict[str, Any] = {"size": PROMPTS, "seed": 7, "opponent": "random"}

END = "<eos>"
"""What `show` writes where the model ended its turn. The environment does not see it."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SupervisedRun]:
    (tmp_path / "configs").symlink_to(Path(__file__).parents[2] / "configs")  # beside which the command starts
    one = SupervisedRun(
        tmp_path,
        ECHO_QUEUE_ROLLOUT__MODE="sync",
        ECHO_QUEUE_ROLLOUT__WORKERS="1",
        ECHO_QUEUE_STALENESS__S="0",
        ECHO_QUEUE_PROMPTS__SOURCE="configs.poker:Hands",
        ECHO_QUEUE_PROMPTS__OPTIONS=f'{{ size = {PROMPTS}, seed = 7, opponent = "random" }}',
        ECHO_QUEUE_ENVIRONMENT__KIND="interactive",
        ECHO_QUEUE_ENVIRONMENT__FUNCTION="configs.poker:Table",
        ECHO_QUEUE_MODEL__MAX_NEW_TOKENS="64",
        ECHO_QUEUE_MODEL__INIT__HIDDEN="64",
        ECHO_QUEUE_MODEL__INIT__WARMUP_STEPS="150",
        ECHO_QUEUE_MODEL__INIT__WARMUP_BATCH="64",
        ECHO_QUEUE_MODEL__INIT__WARMUP_LR="3e-3",
    )
    yield one
    one.stop()


def test_every_hand_is_trained_as_it_was_played(run: SupervisedRun) -> None:
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)
    assert_no_lag(run)
    deals, words = Hands(**OPTIONS), tokenizer_of(run.config)
    turns: Counter[int] = Counter()
    for index in range(PROMPTS):
        kept = in_directory(run.config, f"sorting/0/{index}")
        assert kept is not None
        assert words(kept.group.prompt) == deals[index]["prompt"]
        for sample in kept.group.samples:
            assert all(not sample.logprobs[part.start : part.end].any() for part in sample.observed)
            assert np.isfinite(sample.logprobs).all()
            assert_played(Hand(deals.deal(index)), transcript(sample, words))
            turns[index] += len(sample.observed)
    assert turns.total() > PROMPTS, "hands of a single move test nothing"
    ((longest, _),) = turns.most_common(1)
    shown = subprocess.run(
        [sys.executable, "-m", "echo_queue.cli", "show", str(TINY), f"sorting/0/{longest}"],
        env=run.environ, capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    assert "  environment │ " in shown.stdout and "Your card: " in shown.stdout


def assert_played(hand: Hand, told: Transcript) -> None:
    """The rules, asked again, answer every turn as the record says, and pay the same."""
    said = [part.text.removesuffix(END) for part in told.parts if part.speaker == "model"]
    heard = [part.text for part in told.parts if part.speaker == "environment"]
    answers = [hand.reply(text) for text in said]
    if told.finish == "length" and isinstance(answers[-1], str):
        assert told.reward == hand.unfinished()
        return
    assert (answers[:-1], answers[-1]) == (heard, told.reward)
