"""The host waits for the device once in an optimizer step, and for no micro-batch: it begins the next one meanwhile."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from echo_queue.config import Learner
from learner.batch.packing import Packing
from learner.model.attention.rectangles import Rectangles
from learner.model.attention.varlen import VariableLength
from learner.model.loading import prepare
from learner.model.past_versions import PastVersions
from learner.model.policy import Policy
from learner.update import learn
from tests.learner.host_waits import DEVICE, host_waits
from tests.learner.synthetic import group, tiny_model


class Waits(NamedTuple):
    """The waits of one optimizer step with these settings."""

    settings: dict[str, Any]
    of_a_step: int


FILTERS = {"level": "sequence", "filter_low": 0.1, "filter_high": 10.0, "filter_worse": 1.0}
UPDATES = {
    "dapo": Waits({}, 1),
    "several steps": Waits({"mini_batches": 2, "correction": {"preset": "decoupled-ppo"}}, 1),
    "filters": Waits({"correction": FILTERS}, 1),
    "kept products": Waits({"activation_checkpointing": "selective"}, 1),
    "m2po, whose limit the host finds": Waits({"correction": {"preset": "m2po"}}, 2),
    "old, with a pass by an older version and how much the step replaced": Waits(
        {"correction": {"preset": "ppo-tis"}}, 3
    ),
}
ALL_AT_ONCE, ONE_SAMPLE = 10_000, 1
"""Tokens of a micro-batch."""


def waits_of(
    monkeypatch: pytest.MonkeyPatch, settings: Learner, packing: type[Packing] = VariableLength
) -> tuple[list[str], int, int]:
    """Returns the waits of an update, its optimizer steps, and how many passes and steps it took together."""
    policy, begun = Policy(prepare(tiny_model()).to(DEVICE), settings), 0  # type: ignore[arg-type]
    policy.packing = packing
    past = PastVersions(policy, most=2) if settings.needs_old else None

    def step() -> AbstractContextManager[object]:
        nonlocal begun
        begun += 1
        return nullcontext()

    groups = [group(0), group(1)]
    with host_waits(monkeypatch) as waits:
        if past is not None:
            learn(policy, groups, 1, settings, 1.0, past=past)
            waits.clear()
        steps = learn(policy, groups, 2, settings, 1.0, past=past, step=step).steps
    return waits, steps, begun


@pytest.mark.parametrize("name", UPDATES)
def test_the_host_waits_as_often_however_many_micro_batches_an_update_has(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []
    for micro_tokens in (ALL_AT_ONCE, ONE_SAMPLE):
        settings = Learner.model_validate({"micro_tokens": micro_tokens} | UPDATES[name].settings)
        waits, steps, passes = waits_of(monkeypatch, settings)
        assert len(waits) == UPDATES[name].of_a_step * steps, waits
        begun.append(passes)
    assert begun[1] > 1.5 * begun[0], "there are not many more micro-batches"


def test_rectangles_need_no_wait_either(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, _, _ = waits_of(monkeypatch, Learner(micro_tokens=ONE_SAMPLE), Rectangles)
    assert len(waits) == 1, waits


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda values: values[0].item(),
    "truth": lambda values: bool((values > 0).any()),
    "list": lambda values: values.tolist(),
    "copy": lambda values: values.cpu(),
    "places": lambda values: values.nonzero(),
    "mask": lambda values: values[values > 0],
    "chosen": lambda values: values.masked_select(values > 0),
    "written": lambda values: values.index_put_((values > 0,), torch.zeros((), device=DEVICE)),
    "different": lambda values: values.unique(),
    "from the host": lambda values: values + torch.ones(3).to(DEVICE),
    "made of numbers": lambda values: values + torch.tensor([1.0], device=DEVICE),
}


@pytest.mark.parametrize("name", READS)
def test_each_way_to_read_a_device_is_a_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.zeros(3, device=DEVICE)
    with host_waits(monkeypatch) as waits:
        READS[name](values)
        assert len(waits) == 1, waits
        values.to("cpu", non_blocking=True)
        torch.zeros(3).to(DEVICE, non_blocking=True)
        values[torch.zeros(3, dtype=torch.int64, device=DEVICE)].repeat_interleave(values.long(), output_size=4)
        assert len(waits) == 1, waits
