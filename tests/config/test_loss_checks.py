"""Settings of the loss that do not go together are refused with the reason; a paper's name gives its settings."""

from pathlib import Path

import pytest

from echo_queue.config import Correction, Learner
from echo_queue.config.corrections import PRESETS
from tests.config.test_model import BASE, problems

FRESH = "[staleness]\ns = 0\n"
CORRECTION = "learner.correction"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_goes_together_as_it_is(preset: str, tmp_path: Path) -> None:
    assert not problems(tmp_path, BASE + f'[learner.correction]\npreset = "{preset}"\n')
    assert Learner.model_validate({"correction": {"preset": preset}}).correction.preset == preset


def test_a_preset_gives_what_is_left_out_and_what_is_written_wins() -> None:
    mine = Correction.model_validate({"preset": "gspo", "clip_low": 0.1})
    assert (mine.level, mine.use, mine.clip_low, mine.clip_high) == ("sequence", "clip", 0.1, 4e-4)
    assert Correction.model_validate(mine.model_dump()) == mine
    assert Correction() == Correction.model_validate({"preset": "dapo"})


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('preset = "dppo"\nlevel = "sequence"', f"{CORRECTION}.level", "compares probabilities of tokens"),
        ('level = "product"', f"{CORRECTION}.level", "would cut off nearly every sample"),
        ('preset = "m2po"\nanchor = "proximal"', f"{CORRECTION}.anchor", "the behaviour policy defines"),
        ('preset = "gspo"\nanchor = "proximal"', f"{CORRECTION}.anchor", 'at level "sequence"'),
        ('preset = "dppo"\nanchor = "old"', f"{CORRECTION}.anchor", "the behaviour policy defines"),
        ("cap = 3.0", f"{CORRECTION}.cap", 'is not used with use = "clip"'),
        ('preset = "tis"\ndelta = 0.1', f"{CORRECTION}.delta", 'is not used with use = "truncate"'),
        ('preset = "icepop"\nmask_high = 0.4', f"{CORRECTION}.mask_high", "is not above mask_low"),
        ("filter_low = 0.5", f"{CORRECTION}.filter_low", "is not used while filter_high is 0"),
        ("filter_high = 0.9", f"{CORRECTION}.filter_high", "do not enclose 1"),
        ('use = "none"', f"{CORRECTION}.use", "right for fresh data only; staleness.s is 4"),
        ('preset = "gsop"', f"{CORRECTION}.preset", "is not valid"),
    ],
)
def test_a_correction_that_makes_no_sense_is_refused_with_the_reason(
    text: str, where: str, what: str, tmp_path: Path
) -> None:
    found = problems(tmp_path, BASE + f"[learner.correction]\n{text}\n")
    assert list(found) == [where]
    assert what in found[where].what


def test_no_correction_is_right_for_fresh_data_in_one_step(tmp_path: Path) -> None:
    text = BASE + FRESH + '[learner.correction]\nuse = "none"\n'
    assert not problems(tmp_path, text)
    assert list(problems(tmp_path, text + "[learner]\nmini_batches = 2\n")) == [f"{CORRECTION}.use"]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('normalise = "constant"', "learner.normalise_tokens"),
        ("normalise_tokens = 9", "learner.normalise_tokens"),
        ("mini_batches = 17", "learner.mini_batches"),
        ("long_from = 9", "learner.long_from"),
        ("long_from = 9\nlong_until = 9", "learner.long_until"),
        ("long_from = 9\nlong_until = 100000", "learner.long_until"),
        ('advantage = "max"', "learner.advantage"),
        ('loss = "mine"', "learner.loss"),
        ('loss = "mine:f"\ncorrection = { preset = "tis" }', "learner.correction"),
    ],
)
def test_settings_of_samples_that_contradict_one_another_are_refused(text: str, where: str, tmp_path: Path) -> None:
    assert list(problems(tmp_path, BASE + f"[learner]\n{text}\n")) == [where]


def test_settings_of_samples_that_go_together_are_taken(tmp_path: Path) -> None:
    learner = 'advantage = "max"\nnormalise = "constant"\nnormalise_tokens = 64\ntruncated = "mask"\nloss = "mine:f"\n'
    assert not problems(tmp_path, BASE + f"[environment]\nreward_min = 0\n[learner]\n{learner}")
    assert not problems(tmp_path, BASE + "[learner]\nlong_from = 32\nlong_until = 64\n")
