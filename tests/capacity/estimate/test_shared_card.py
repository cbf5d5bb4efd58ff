"""A card that several roles share is divided so that each of them has what it needs, or it is said that none has."""

import pytest

from echo_queue.capacity.estimate.learner_memory import CONTEXT, learner_memory
from echo_queue.capacity.estimate.shared_card import SharedCard, shared_card
from echo_queue.capacity.estimate.worker_memory import worker_memory
from echo_queue.models.devices import DEVICES
from tests.models import config, shape


def card(name: str, engine: str = "vllm", *, workers: int = 1, learner: bool = True) -> SharedCard:
    run = config(
        model={"dtype": "bfloat16", "max_prompt_tokens": 512, "max_new_tokens": 1_024},
        rollout={"engine": engine, "group_size": 4, "concurrent_groups": 1},
        learner={"activation_checkpointing": "full", "micro_tokens": 8_192},
    )
    found, worker = learner_memory(run, shape(name), 1, "cuda"), worker_memory(run, shape(name))
    return shared_card(run, found if learner else None, worker, DEVICES["h100"].memory, workers)


def test_the_shares_of_all_who_are_on_a_card_are_no_more_than_the_card_less_the_margin() -> None:
    for workers in (1, 2, 5):
        found = card("qwen3-0.6b", workers=workers)
        assert 0.9 < found.learner + workers * found.each <= 0.96, "the learner's is rounded up"
        assert found.suffices


def test_a_card_that_the_learner_fills_has_nothing_for_a_worker() -> None:
    found = card("qwen3-4b")
    assert (found.each, found.suffices) == (0, False)
    assert card("qwen3-4b", learner=False).each == 0.95


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_worker_needs_its_weights_and_a_cache(engine: str) -> None:
    """vLLM lets samples wait and needs the cache of one; the other engine has that of all of them."""
    bytes_of_token, weights = 147_456, 2 * shape("qwen3-4b").total
    cache = bytes_of_token * 1_536 * (4 if engine == "transformers" else 1)
    besides = CONTEXT if engine == "transformers" else 2e9
    share = (weights + cache + besides) / DEVICES["h100"].memory
    assert 0 <= card("qwen3-4b", engine).least - share < 0.01
