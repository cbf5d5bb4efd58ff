"""Each family that the learner trains gives transformers' own log-probabilities and gradients, prompts shared."""

import pytest
import torch

from echo_queue.config import Learner
from learner.batch.micro_batches import micro_batches
from learner.batch.prepare import prepare
from learner.model.architecture import check_architecture
from learner.model.attention.rectangles import Rectangles
from learner.model.loading import prepare as for_scorer
from learner.model.scorer import Scorer
from tests.learner.model.families import DENSE, FAMILIES, WINDOW, family_model, settings_of
from tests.learner.model.test_scorer import UNEVEN, gradients, plain, plain_sum, shared


def widest(family: str) -> torch.dtype:
    """Returns float64, unless torch has no grouped product of it. Norms and softmax are in float32 in any case."""
    return torch.float64 if family in DENSE else torch.float32


def test_windows_begin_inside_prompts_and_inside_samples() -> None:
    assert any(1 < WINDOW < len(item.prompt) for item in UNEVEN)
    assert any(len(sample.tokens) > WINDOW for item in UNEVEN for sample in item.samples)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_and_gradients_are_those_of_a_plain_forward_pass(family: str) -> None:
    model = family_model(family, dtype=widest(family))
    expected = torch.cat(list(plain(model, UNEVEN, 0.9).values())).sort().values
    gradient = gradients(model, plain_sum(model, UNEVEN, 1.0))
    for_scorer(model)
    (batch,) = micro_batches(prepare(UNEVEN, Learner(zero_variance="keep")), 10_000, Rectangles)
    found = Scorer(model)(batch, 0.9).logprobs.sort().values
    torch.testing.assert_close(found.float(), expected, atol=1e-5, rtol=0)
    again = gradients(model, shared(model, UNEVEN, 1.0, 60))
    assert again.keys() == gradient.keys() == {name for name, _ in model.named_parameters()}
    for name, value in gradient.items():
        torch.testing.assert_close(again[name], value, atol=2e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_check_of_the_architecture_takes_it(family: str) -> None:
    check_architecture(settings_of(family, num_hidden_layers=2))
