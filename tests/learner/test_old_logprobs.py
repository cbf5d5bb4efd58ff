"""Tokens are scored by the very versions that drew them, and the policy is afterwards what it was, bit for bit."""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from echo_queue.config import Learner, Lora
from echo_queue.records import Group, Logprobs, Observed, Sample, Span
from learner.batch.micro_batches import MicroBatch, micro_batches
from learner.batch.prepare import PromptSamples, SampleRow, prepare
from learner.model.attention.rectangles import Rectangles
from learner.model.loading import prepare as for_scorer
from learner.model.lora.adapters import Adapters
from learner.model.past_versions import PastVersions
from learner.model.policy import Policy
from learner.model.sharding import local
from learner.update import learn
from learner.update.old_logprobs import with_old_logprobs
from learner.update.passes import Passes
from tests.learner.states import restore, state_of
from tests.learner.synthetic import group, tiny_model

S, PRESENT, TEMPERATURE = 3, 6, 0.9
GROUPS = [group(number, 3 + number, (4, 7, 1 + number), (1, 0, 0.5)) for number in range(4)]


class Kind(NamedTuple):
    """A kind of policy. `share`: the most that its reverse deltas may take, as a share of whole copies."""

    dtype: torch.dtype
    rank: int = 0
    lr: float = 3e-3
    share: float = 1.0

    def policy(self) -> Policy:
        settings = Learner(lr=self.lr)
        if not self.rank:
            return Policy(for_scorer(tiny_model()), settings, self.dtype)
        model = for_scorer(tiny_model().to(self.dtype))
        adapters = Adapters(model, Lora(rank=self.rank))
        adapters.initialise(0)
        return Policy(model, settings, self.dtype, adapters=adapters)


KINDS = {
    "float32": Kind(torch.float32),
    "bfloat16": Kind(torch.bfloat16, lr=3e-5, share=0.5),
    "LoRA": Kind(torch.float32, rank=3),
    "LoRA, bfloat16": Kind(torch.bfloat16, rank=3),
}


class Trained(NamedTuple):
    """A policy after `PRESENT` updates, with all that it published."""

    policy: Policy
    past: PastVersions
    published: Mapping[int, Mapping[str, Tensor]]


def trained(kind: Kind, s: int = S, **learner: Any) -> Trained:
    policy = kind.policy()
    past, settings = PastVersions(policy, s), old_settings(lr=kind.lr, **learner)
    published = {0: copy_of(policy)}
    for number in range(1, PRESENT + 1):
        learn(policy, GROUPS, number, settings, TEMPERATURE, past=past)
        published[number] = copy_of(policy)
    return Trained(policy, past, published)


def old_settings(**learner: Any) -> Learner:
    return Learner.model_validate({"correction": {"preset": "ppo-tis"}} | learner)


def copy_of(policy: Policy) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in policy.snapshot().items()}


def digest(policy: Policy) -> str:
    """SHA-256 of masters, moments and the state of the random numbers."""
    found = hashlib.sha256()
    for name, tensor in sorted(state_of(policy).items()):
        found.update(name.encode() + tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def fresh(kind: Kind, published: Mapping[str, Tensor]) -> Policy:
    """A policy that has loaded what was published."""
    policy = kind.policy()
    for name, master in policy.masters.items():
        local(master.detach()).copy_(published[name])
    return policy


def one_batch() -> MicroBatch:
    (batch,) = micro_batches(prepare(GROUPS, Learner()), 10_000, Rectangles)
    return batch


@torch.no_grad()
def scores(policy: Policy) -> Tensor:
    return policy.score(one_batch(), TEMPERATURE).logprobs


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_visit_scores_as_what_was_published_and_leaves_every_bit_of_the_policy(name: str) -> None:
    policy, past, published = trained(KINDS[name])
    before, now = digest(policy), scores(policy)
    with past.visit(PRESENT, PRESENT - S) as go_back_to:
        for version in (PRESENT - 1, PRESENT - S):
            go_back_to(version)
            assert torch.equal(scores(policy), scores(fresh(KINDS[name], published[version])))
            assert all(torch.equal(weight, published[version][key]) for key, weight in policy.snapshot().items())
            assert not torch.equal(scores(policy), now)
    assert digest(policy) == before
    assert torch.equal(scores(policy), now)


class Reads(TorchDispatchMode):
    """Counts the operations whose results' values or sizes a GPU's host waits for."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operation in {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
        return operation(*args, **kwargs or {})


def test_what_a_step_replaced_is_found_without_a_read_for_each_tensor() -> None:
    policy = KINDS["bfloat16"].policy()
    past, reads = PastVersions(policy, S), Reads()
    past.begin(1)
    with reads, past.recording():
        for master in policy.masters.values():
            local(master.detach()).view(-1)[:2] += 1
    (replaced,) = past._deltas[1]
    assert replaced.keys() == policy.masters.keys() and reads.count == 0


@pytest.mark.parametrize("name", KINDS)
def test_the_versions_within_s_are_known_and_take_bounded_memory(name: str) -> None:
    _, past, published = trained(KINDS[name])
    assert [version for version in range(PRESENT + 1) if past.knows(version, PRESENT)] == [3, 4, 5, 6]
    whole = sum(weight.nbytes for weight in published[0].values())
    assert 0 < past.nbytes <= KINDS[name].share * S * whole


def test_fresh_data_needs_no_older_version() -> None:
    past = trained(KINDS["float32"], s=0).past
    assert past.nbytes == 0
    assert past.knows(PRESENT, PRESENT) and not past.knows(PRESENT - 1, PRESENT)


SPANS = (Span(0, 1), Span(2, 4), Span(5, 5), Span(6, 6))
"""Version 1 is older than S allows, and 6 is the policy's own."""


def partial_rollouts() -> list[Group]:
    """Groups of samples that four versions drew, the environment wrote into, or one version drew whole."""
    mixed = group(1, 4, (9, 8, 7), (1, 0, 0.5))
    observed = (Observed(3, 5),)
    first, second, third = mixed.samples
    samples = (replace(first, spans=SPANS), replace(second, spans=(Span(0, 4),), observed=observed), third_of(third))
    return [replace(mixed, samples=samples), replace(GROUPS[2], samples=tuple(map(third_of, GROUPS[2].samples)))]


def third_of(sample: Sample) -> Sample:
    return replace(sample, spans=(Span(0, 3),))


@torch.no_grad()
def by_transformers(published: Mapping[str, Tensor], prompt: Tensor, row: SampleRow) -> Tensor:
    """log π of all of a sample's tokens [T], by a model of transformers' own that loads a published version."""
    model = tiny_model()
    model.load_state_dict(dict(published), strict=False)
    tokens = torch.from_numpy(row.tokens).long()
    logits = model(torch.cat([prompt, tokens])[None]).logits[0, len(prompt) - 1 : -1]
    found: Tensor = torch.log_softmax(logits / TEMPERATURE, -1).gather(-1, tokens[:, None])[:, 0]
    return found


def expected_of(made: Trained, samples: PromptSamples, row: SampleRow, *, in_step: bool) -> Logprobs:
    expected, prompt = row.behaviour.copy(), torch.from_numpy(samples.prompt).long()
    for version in np.unique(row.versions[row.versions >= PRESENT - S]).tolist():
        own = row.versions == version
        of_version = by_transformers(made.published[version], prompt, row).numpy()
        expected[own] = np.nan if in_step and version == PRESENT else of_version[own]
    return expected


@pytest.mark.parametrize("in_step", [True, False])
def test_each_token_is_scored_by_the_version_that_drew_it(in_step: bool) -> None:
    """What no version within S drew has the engine's log-probability, and so do tokens that nobody drew."""
    made, settings = trained(KINDS["float32"]), Learner(micro_tokens=12)
    update = prepare(partial_rollouts(), settings)
    twice = update.groups[1]
    update = replace(update, groups=(update.groups[0], PromptSamples(twice.prompt, (*twice.rows, twice.rows[0]))))
    passes_of = partial(
        Passes, made.policy, settings=settings, number=PRESENT + 1, temperature=TEMPERATURE, reference=None
    )
    found, figures = with_old_logprobs(update, made.past, passes_of, nullcontext, present=PRESENT, in_step=in_step)
    gaps = {}
    for samples, scored in zip(update.groups, found.groups, strict=True):
        for row, with_old in zip(samples.rows, scored.rows, strict=True):
            expected = expected_of(made, samples, row, in_step=in_step)
            assert with_old.old_logprobs is not None
            mine, known = with_old.old_logprobs[row.sampled], expected[row.sampled]
            np.testing.assert_allclose(mine, known, rtol=0, atol=2e-6)
            passed = ~np.isnan(known) & (row.versions[row.sampled] >= PRESENT - S)
            gaps[id(row)] = (row.behaviour[row.sampled] - known)[passed]
    unknown, drawn = 2, sum(row.drawn for row in dict.fromkeys(update.rows))
    assert figures.exact_fraction == pytest.approx(1 - unknown / drawn)
    assert figures.kl_engine == pytest.approx(float(np.concatenate(list(gaps.values())).mean()), abs=1e-6)


def test_a_learner_that_has_just_started_corrects_older_tokens_by_the_behaviour_policy() -> None:
    """It has nothing that leads back to what an earlier process trained, but to all that it trains itself."""
    states = []
    for preset in ("ppo-tis", "ppo"):
        policy, settings = KINDS["float32"].policy(), Learner.model_validate({"correction": {"preset": preset}})
        past = PastVersions(policy, S) if settings.needs_old else None
        results = [learn(policy, GROUPS, number, settings, TEMPERATURE, past=past) for number in (3, 4)]
        states.append(state_of(policy))
        if past is not None:
            assert [result.old.exact_fraction for result in results if result.old] == [0.0, 0.0]
            resumed = [replace(one, samples=tuple(map(third_of, one.samples))) for one in GROUPS]
            again = learn(policy, resumed, 5, settings, TEMPERATURE, past=past)
            assert again.old is not None and again.old.exact_fraction == 1.0
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.parametrize("mini_batches", [1, 2])
def test_where_the_engine_computes_as_the_learner_does_the_old_policy_is_its_policy(mini_batches: int) -> None:
    made, other = trained(KINDS["float32"]), KINDS["float32"].policy()
    restore(other, state_of(made.policy))
    rows = [samples.rows for samples in prepare(GROUPS, Learner()).groups]
    drawn = [
        replace(item, samples=tuple(engine_sample(made, item, row) for row in own))
        for item, own in zip(GROUPS, rows, strict=True)
    ]
    for policy, preset, past in ((made.policy, "ppo-tis", made.past), (other, "ppo", None)):
        settings = old_settings(correction={"preset": preset}, mini_batches=mini_batches, lr=1e-3)
        learn(policy, drawn, PRESENT + 1, settings, TEMPERATURE, past=past)
    found, expected, before = copy_of(made.policy), copy_of(other), made.published[PRESENT]
    for name, weight in expected.items():
        assert (found[name] - weight).norm() <= 1e-3 * (weight - before[name]).norm(), name


def engine_sample(made: Trained, item: Group, row: SampleRow) -> Sample:
    """A sample that version 4 drew, with the log-probabilities of an engine that computes as the learner does."""
    logprobs = by_transformers(made.published[4], torch.from_numpy(item.prompt).long(), row).numpy()
    place = next(place for place, one in enumerate(item.samples) if one.tokens is row.tokens)
    return replace(item.samples[place], logprobs=logprobs, spans=(Span(0, 4),))
