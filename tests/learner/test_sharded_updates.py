"""Several ranks train what one process trains: the same losses, gradient norms, parameters, moments and weights."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from echo_queue.config import Config
from echo_queue.config.corrections import PRESETS
from echo_queue.errors import ConfigError
from echo_queue.records import Group, Span
from echo_queue.weights.lora import DESCRIPTION, B
from learner.model.loading import load_policy, load_reference
from learner.model.loading import prepare as for_scorer
from learner.model.lora.adapters import Adapters
from learner.model.past_versions import PastVersions
from learner.model.pieces import Piece
from learner.model.policy import MASTER, RNG, Policy
from learner.model.scorer import Score, Scorer
from learner.model.sharding import first_row, local
from learner.ranks.team import RankLostError, Team
from learner.update import UpdateResult, learn
from tests.learner.model.families import family_model
from tests.learner.rank_processes import DEADLINE_S, RankProcesses, run_ranks
from tests.learner.states import put_together, restore
from tests.learner.synthetic import group, tiny_model

CPU = torch.device("cpu")
RAGGED = [group(number, 2 + 3 * number, (4, 9, 1 + number), (1, 0, number % 2)) for number in range(5)]
TWO_SAMPLES = [group(7, 6, (3, 5), (1, 0))]
"""One of three ranks has nothing to train."""
NO_VARIANCE = [group(8, rewards=(1, 1, 1)), group(9, rewards=(0, 0, 0))]
BATCHES = (RAGGED, TWO_SAMPLES, NO_VARIANCE, [*RAGGED[:2], *NO_VARIANCE])
SPANS = (Span(0, 0), Span(1, 1), Span(3, 2))
SEVERAL_VERSIONS = [
    replace(item, samples=tuple(replace(one, spans=SPANS[: 1 + len(one.tokens) // 4]) for one in item.samples))
    for item in RAGGED
]
STALE = {"learner": {"correction": {"preset": "ppo-tis"}}, "batches": (RAGGED, TWO_SAMPLES, SEVERAL_VERSIONS)}
S = 2
TEMPERATURE = 0.9
HANG_S = 5.0
COUNTED = ("clipped", "filtered")
"""The sums that count tokens."""


class Case(NamedTuple):
    """A model and how it is trained. `tolerance`: of a number, or of a tensor's norm."""

    masters: torch.dtype = torch.float64
    compute: torch.dtype = torch.float64
    tied: bool = True
    family: str = ""
    """One of `tests.learner.model.families`, which is tied as it is."""
    learner: Mapping[str, Any] = {}
    rank: int = 0
    tolerance: float = 1e-6
    batches: Sequence[list[Group]] = BATCHES
    most_flips: int = 0
    """The number of tokens that may be on the other side of a clip: in bfloat16 a ratio may lie within rounding of it,
    and how a processor sums decides."""

    def config(self, folder: Path) -> Config:
        values = {
            "run": {"name": "test", "dir": folder / "run"},
            "model": {
                "base": str(base(folder, self.family or self.tied)),
                "dtype": "float32",
                "lora": {"rank": self.rank},
            },
            "learner": {"lr": 1e-3, "micro_tokens": 60, "weight_decay": 0.1, **self.learner},
        }
        if self.compute == torch.bfloat16:
            values["model"]["dtype"] = "bfloat16"
        return Config.model_validate(values)


FAMILIES = ("qwen3_moe", "gemma3")
AGAIN = {"activation_checkpointing": "full"}
SINGLE = Case(torch.float32, torch.float32, tolerance=1e-4)
CASES = (
    {
        "tied": Case(),
        "untied, reference, activations computed again": Case(tied=False, learner={"kl": 0.5} | AGAIN),
        "float32, reference": SINGLE._replace(learner={"kl": 0.5}),
        "float32, untied": SINGLE._replace(tied=False),
        # One update, since bfloat16 rounds otherwise where samples lie otherwise in micro-batches, and that adds up.
        "bfloat16, reference": Case(torch.float32, torch.bfloat16, True, "", {"kl": 0.5} | AGAIN, 0, 2e-2, BATCHES[:1]),
        "LoRA, reference": Case(tied=False, learner={"kl": 0.5}, rank=3),
        "LoRA, float32": SINGLE._replace(learner={"kl": 0.5} | AGAIN, rank=3),
        "mini-batches": Case(learner={"mini_batches": 2, "guard": "act"}),
        "offloaded, mini-batches": Case(learner={"mini_batches": 2, "offload": True}),
        "LoRA, offloaded": SINGLE._replace(learner={"offload": True}, rank=3),
        "LoRA, mini-batches, decoupled": Case(
            tied=False, learner={"kl": 0.5, "mini_batches": 3, "correction": {"preset": "decoupled-ppo"}}, rank=3
        ),
        "old": Case(**STALE),
        "LoRA, old, mini-batches": Case(**STALE | {"learner": STALE["learner"] | {"mini_batches": 2}}, rank=3),
        # A token on the other side of a clip is in the sums as well: 2 % were seen.
        "bfloat16, old": Case(torch.float32, torch.bfloat16, tolerance=4e-2, most_flips=2, **STALE),
        "LoRA, bfloat16": Case(torch.float32, torch.bfloat16, True, "", {"kl": 0.5}, 3, 2e-2, BATCHES[:1]),
    }
    | {
        name: Case(learner=values, batches=BATCHES[:2])
        for name, values in {
            "gspo, samples, max": {
                "correction": {"preset": "gspo", "clip_high": 0.5},
                "normalise": "samples",
                "advantage": "max",
            },
            "dppo, filtered": {"correction": {"preset": "dppo", "filter_high": 2.0, "filter_worse": 0.5}},
            "decoupled, constant": {
                "correction": {"preset": "decoupled-ppo"},
                "normalise": "constant",
                "normalise_tokens": 9,
            },
            "seq-TIS, long samples lose": {
                "correction": {"preset": "tis", "level": "product"},
                "long_from": 4,
                "long_until": 9,
            },
        }.items()
    }
    | {family: SINGLE._replace(family=family, learner=AGAIN, batches=BATCHES[:2]) for family in FAMILIES}
)
COVERED = {case.learner.get("correction", {}).get("preset", "dapo") for case in CASES.values()}
CASES |= {
    preset: Case(learner={"correction": {"preset": preset}}, batches=BATCHES[:2])
    for preset in PRESETS
    if preset not in COVERED
}


class Trained(NamedTuple):
    """The results and the state of one rank after some updates. `unharmed`: its rows are, bit for bit, what they were
    before the updates' oldest version was visited once more."""

    results: list[UpdateResult]
    pieces: list[Piece]
    snapshot: dict[str, Tensor]
    unharmed: bool


def base(folder: Path, model: str | bool) -> Path:
    """`model`: a family, or whether the tiny model is tied."""
    return folder / (model if isinstance(model, str) else "tied" if model else "untied")


def opened(team: Team, case: Case, folder: Path) -> tuple[Policy, Score | None]:
    """The learner loads float32 masters from files; float64 is for these tests."""
    config = case.config(folder)
    if case.masters == torch.float32:
        policy = load_policy(config, CPU, team)
    else:
        model = for_scorer(tiny_model(tie_word_embeddings=case.tied).double())
        adapters = Adapters(model, config.model.lora) if case.rank else None
        policy = Policy(model, config.learner, case.compute, team, adapters=adapters)
        if adapters is not None:
            adapters.initialise(config.run.seed)
    if case.rank:
        draw_b(policy)
    return policy, reference_of(policy, config, case) if config.learner.kl else None


def draw_b(policy: Policy) -> None:
    """Draws the factors that begin as zero, so that the first gradient is one of all factors."""
    for name, master in policy.masters.items():
        if name.endswith(B):
            drawn = torch.randn(master.shape, generator=torch.Generator().manual_seed(0), dtype=master.dtype)
            mine = local(master.detach())
            mine.copy_(drawn[first_row(master) :][: len(mine)] / 50)


def reference_of(policy: Policy, config: Config, case: Case) -> Score:
    if case.rank:
        return policy.score_base
    if case.masters == torch.float32:
        return load_reference(config, CPU, policy.team)
    return Scorer(for_scorer(tiny_model(tie_word_embeddings=case.tied).double().requires_grad_(False)))


def trained(
    team: Team, case: Case, folder: Path, batches: Sequence[list[Group]], state: Mapping[str, Tensor] | None = None
) -> Trained:
    policy, reference = opened(team, case, folder)
    if state is not None:
        restore(policy, state)
    settings = case.config(folder).learner
    past = PastVersions(policy, S) if settings.needs_old else None
    results = [
        learn(policy, groups, number, settings, TEMPERATURE, reference=reference, past=past)
        for number, groups in enumerate(batches, 1)
    ]
    return Trained(results, policy.pieces(), policy.snapshot(), past is None or unharmed(policy, past, len(batches)))


def unharmed(policy: Policy, past: PastVersions, present: int) -> bool:
    before = [piece.tensor.clone() for piece in policy.pieces()]
    with past.visit(present, present - S) as go_back_to:
        go_back_to(present - S)
    return all(torch.equal(piece.tensor, one) for piece, one in zip(policy.pieces(), before, strict=True))


def all_trained(team: Team, folder: Path) -> dict[str, Trained]:
    return {name: trained(team, case, folder, case.batches) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    for tied in (True, False):
        tiny_model(tie_word_embeddings=tied).save_pretrained(base(folder, tied))
    for family in FAMILIES:
        family_model(family).save_pretrained(base(folder, family))
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Trained]:
    return all_trained(Team.alone(), folder)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(3, marks=pytest.mark.slow),
        *(pytest.param(size, marks=pytest.mark.proof(kind="ranks", share=0.2)) for size in (2, 4)),
    ],
)
def test_ranks_train_what_one_process_trains(size: int, folder: Path, alone: dict[str, Trained]) -> None:
    """Three ranks hold rows unevenly, and one of them has nothing to train in the second update."""
    ranks: list[dict[str, Trained]] = run_ranks(size, all_trained, folder)
    for name, case in CASES.items():
        first, expected = ranks[0][name], alone[name]
        assert all(rank[name].results == first.results for rank in ranks), "every rank gets the same figures"
        for found, one in zip(first.results, expected.results, strict=True):
            assert numbers(found) == pytest.approx(numbers(one), rel=case.tolerance, abs=case.tolerance / 100), name
            assert counts(found) == pytest.approx(counts(one), rel=0, abs=case.most_flips), name
            if case.compute == torch.float64:
                assert ratios(found) == pytest.approx(ratios(one), rel=1e-6), name
        assert all(rank[name].unharmed for rank in ranks)
        state = put_together(piece for rank in ranks for piece in rank[name].pieces)
        assert far(state, put_together(expected.pieces), case.tolerance) == [], name
        assert not any(rank[name].snapshot for rank in ranks[1:]), "rank 0 alone gets the weights"
        assert first.snapshot.keys() == expected.snapshot.keys()
        for key, weight in first.snapshot.items():
            if key == DESCRIPTION:
                assert torch.equal(weight, state[key])
                continue
            assert torch.equal(weight, state[MASTER + key].to(case.compute)), (name, key)


def numbers(result: UpdateResult) -> list[float]:
    sums = [number for name, number in vars(result.sums).items() if name not in COUNTED]
    return [result.grad_norm, result.lr, result.zero_variance_groups, result.steps, *sums]


def counts(result: UpdateResult) -> list[float]:
    return [getattr(result.sums, name) for name in COUNTED]


def ratios(result: UpdateResult) -> list[float]:
    found = result.ratios
    quantiles = [number for _, row in found.by_lag for number in row]
    return [found.ess_tokens, found.ess_samples, found.second_moment, *quantiles]


def far(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> list[str]:
    """Names the parameters that differ by more than this share of their norm, and moments by ten times as much."""
    assert found.keys() == expected.keys()
    found_far = []
    for name, tensor in expected.items():
        distance = (found[name].double() - tensor.double()).norm() / tensor.double().norm().clamp(min=1e-30)
        if name != RNG and distance > tolerance * (1 if name.startswith(MASTER) else 10):
            found_far.append(f"{name}: {distance:.1e}")
    return found_far


def with_and_without_training(
    team: Team, case: Case, folder: Path, batches: Sequence[list[Group]], state: Mapping[str, Tensor] | None
) -> list[list[Piece]]:
    """Returns this rank's pieces of the state as it was restored, and as it is after some updates."""
    return [trained(team, case, folder, some, state).pieces for some in ([], batches)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(CASES["tied"], marks=pytest.mark.proof(kind="ranks", share=0.2)), SINGLE]
)
def test_training_continues_on_fewer_ranks(case: Case, folder: Path) -> None:
    """On four ranks, then on two, then on one; and then on four again."""
    state: dict[str, Tensor] | None = None
    for size in (4, 2, 1, 4):
        if size == 1:
            ranks = [with_and_without_training(Team.alone(), case, folder, BATCHES[:2], state)]
        else:
            ranks = run_ranks(size, with_and_without_training, case, folder, BATCHES[:2], state)
        if state is not None:
            restored = put_together(piece for rank in ranks for piece in rank[0])
            assert restored.keys() == state.keys()
            assert all(torch.equal(restored[name], tensor) for name, tensor in state.items())
        state = put_together(piece for rank in ranks for piece in rank[1])
    expected = put_together(trained(Team.alone(), case, folder, BATCHES[:2] * 4).pieces)
    assert state is not None
    assert far(state, expected, case.tolerance) == []


def test_the_state_of_another_model_is_refused(folder: Path) -> None:
    state = put_together(trained(Team.alone(), SINGLE, folder, []).pieces)
    policy, _ = opened(Team.alone(), CASES["float32, untied"], folder)
    with pytest.raises(ConfigError, match="the run's checkpoint belongs to another model"):
        restore(policy, state)


def lost(team: Team, folder: Path, signal_: int, who: int) -> str:
    """Trains two updates; `who` gets the signal in the middle of the second. Returns what another rank then raises."""
    policy, _ = opened(team, SINGLE, folder)
    settings = SINGLE.config(folder).learner
    learn(policy, RAGGED, 1, settings, TEMPERATURE)
    if team.rank == who:
        policy.score = lambda *_: os.kill(os.getpid(), signal_)  # type: ignore[method-assign, assignment]
    with pytest.raises(RankLostError) as error:
        learn(policy, RAGGED, 2, settings, TEMPERATURE)
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_dies_in_an_update_ends_the_others_at_once(who: int, folder: Path) -> None:
    with RankProcesses(3, lost, folder, signal.SIGKILL, who, deadline_s=2 * DEADLINE_S) as ranks:
        for rank in {0, 1, 2} - {who}:
            told = ranks.outcome(rank, deadline_s=DEADLINE_S)
            assert isinstance(told, str), told
            assert told.startswith(f"learner rank {who}: "), told


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_hangs_in_an_update_ends_the_others_at_the_deadline(who: int, folder: Path) -> None:
    with RankProcesses(3, lost, folder, signal.SIGSTOP, who, deadline_s=HANG_S) as ranks:
        for rank in {0, 1, 2} - {who}:
            told = ranks.outcome(rank)
            assert isinstance(told, str), told
            assert told.startswith(f"learner rank {who}: "), told
