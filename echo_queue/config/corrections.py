"""The section `[learner.correction]`: what each of the loss's corrections for stale data uses, and what it goes with.

- A correction is its function in `learner/losses/corrections.py`, and here its word in `UseName`, its entry in `USES`
  and its coefficients in `Correction`. A paper's name for it is a word in `PresetName` and an entry in `PRESETS`.
- The checks, the tables of docs/configuration.md and the tests of losses, ranks and gradients follow from these.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from echo_queue.config.keys import OnlyWith, Section, Words
from echo_queue.config.toml_text import value_text
from echo_queue.errors import Problem

WHERE = "learner.correction"
USE, ANCHOR = f"{WHERE}.use", f"{WHERE}.anchor"
Level = Literal["token", "sequence", "product"]
UseName = Literal["none", "clip", "truncate", "mask", "dppo", "m2po"]
PresetName = Literal["dapo", "ppo", "tis", "cispo", "icepop", "gspo", "dppo", "decoupled-ppo", "ppo-tis", "m2po"]


class Use(NamedTuple):
    """A use of the ratio by a correction.

    `loss`: the loss per token, by the symbols of `Correction`; `source`: where it comes from. `levels`: those that it
    goes with, and `reason`: why with no other. `anchored`: the ratio may be taken to another policy than the behaviour
    policy. `least`: the key that bounds the ratio from below, and the least ratio that it lets through.
    """

    loss: str
    source: str
    levels: tuple[Level, ...] = ("token",)
    reason: str = ""
    anchored: bool = False
    least: "Callable[[Correction], tuple[str, float]]" = lambda _: ("", 0.0)


USES: Mapping[str, Use] = {
    "none": Use("−A·log π", "REINFORCE; refused unless S = 0", reason="uses no ratio"),
    "clip": Use(
        "−min(ρA, clip(ρ, 1 − `clip_low`, 1 + `clip_high`)·A)",
        "PPO, DAPO",
        ("token", "sequence"),
        "would cut off nearly every sample: the product of many ratios is seldom within the clip",
        anchored=True,
        least=lambda c: ("clip_low", 1 - c.clip_low),
    ),
    "truncate": Use(
        "−sg(min(ρ, `cap`))·A·log π",
        "TIS; CISPO without a lower bound",
        ("token", "sequence", "product"),
        anchored=True,
    ),
    "mask": Use(
        "−sg(ρ·1[`mask_low` ≤ ρ ≤ `mask_high`])·A·log π",
        "IcePop",
        ("token", "sequence", "product"),
        anchored=True,
        least=lambda c: ("mask_low", c.mask_low),
    ),
    "dppo": Use(
        "−ρA, or 0 where the probability π − μ has moved by more than `delta` in the direction of A; "
        "+ `drift`·(log ρ)²",
        "DPPO with total variation; the last term is prime-rl's",
        reason="compares probabilities of tokens",
    ),
    "m2po": Use(
        "−ρA, or 0 for the tokens that the update would move further away and whose (log ρ)² is largest, so that the "
        "mean of the others' is at most `budget`",
        "M2PO",
        reason="leaves out tokens",
    ),
}


class Preset(NamedTuple):
    """A paper's correction: where it is from, and the values of the keys that it gives."""

    source: str
    values: Mapping[str, Any]


PRESETS: Mapping[str, Preset] = {
    "dapo": Preset("arXiv 2503.14476", {"use": "clip", "clip_low": 0.2, "clip_high": 0.28}),
    "ppo": Preset("arXiv 1707.06347", {"use": "clip", "clip_low": 0.2, "clip_high": 0.2}),
    "tis": Preset("fengyao.notion.site/off-policy-rl, arXiv 2505.24034 (AIPO)", {"use": "truncate", "cap": 2.0}),
    "cispo": Preset("arXiv 2506.13585, with ScaleRL's cap (arXiv 2510.13786)", {"use": "truncate", "cap": 5.0}),
    "icepop": Preset("arXiv 2510.18855", {"use": "mask", "mask_low": 0.5, "mask_high": 5.0}),
    "gspo": Preset("arXiv 2507.18071", {"level": "sequence", "use": "clip", "clip_low": 3e-4, "clip_high": 4e-4}),
    "dppo": Preset("arXiv 2602.04879", {"use": "dppo", "delta": 0.2, "drift": 1e-3}),
    "decoupled-ppo": Preset(
        "arXiv 2505.24298", {"use": "clip", "clip_low": 0.2, "clip_high": 0.2, "anchor": "proximal", "cap": 5.0}
    ),
    "ppo-tis": Preset(
        "fengyao.notion.site/off-policy-rl",
        {"use": "clip", "clip_low": 0.2, "clip_high": 0.2, "anchor": "old", "cap": 2.0},
    ),
    "m2po": Preset("arXiv 2510.01161", {"use": "m2po", "budget": 0.04}),
}


def _spelled(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {value_text(value)}`" for key, value in values.items())


OF_USES = Words(("loss per token", "source"), {word: (use.loss, use.source) for word, use in USES.items()})
OF_PRESETS = Words(("source", "gives"), {word: (one.source, _spelled(one.values)) for word, one in PRESETS.items()})


class Correction(Section):
    """The loss's correction for data that older weights generated, by tokens' probability ratios: ρ to the behaviour
    policy μ, whose log-probabilities come with the samples. π is the learner's policy, A the advantage, and sg stops
    the gradient. docs/learning.md says more."""

    preset: Annotated[PresetName, OF_PRESETS] = "dapo"
    """A paper's correction. Keys of this section that you leave out have its values."""
    level: Level = "token"
    """The ratio that a token is corrected by: its own; the geometric mean of its sample's (`sequence`, GSPO); or the
    product of its sample's."""
    use: Annotated[UseName, OF_USES] = "clip"
    """What the ratio is used for: the table of `use` below has the loss per token of each."""
    anchor: Literal["behaviour", "proximal", "old"] = "behaviour"
    """The policy that the ratio is taken to: the one that drew the tokens (`behaviour`); one between it and the
    learner's (`proximal`, decoupled PPO); or the version that drew each token, as the learner itself evaluates it
    (`old`). What lies between the behaviour policy and either of the latter two is an importance weight of at most
    `cap`."""
    clip_low: Annotated[float, Field(gt=0, lt=1), OnlyWith(USE, "clip")] = 0.2
    """Lower clip: the policy ratio counts as at least 1 − `clip_low`."""
    clip_high: Annotated[float, Field(gt=0), OnlyWith(USE, "clip")] = 0.28
    """Upper clip: the policy ratio counts as at most 1 + `clip_high`."""
    cap: Annotated[float, Field(gt=0), OnlyWith(USE, "truncate"), OnlyWith(ANCHOR, "proximal", "old")] = 2.0
    """Largest importance weight."""
    mask_low: Annotated[float, Field(ge=0), OnlyWith(USE, "mask")] = 0.5
    """Smallest ratio that `mask` lets through."""
    mask_high: Annotated[float, Field(gt=0), OnlyWith(USE, "mask")] = 5.0
    """Largest ratio that `mask` lets through."""
    delta: Annotated[float, Field(gt=0, le=1), OnlyWith(USE, "dppo")] = 0.2
    """Largest change of a token's probability, in the direction of its advantage, that `dppo` lets through."""
    drift: Annotated[float, Field(ge=0), OnlyWith(USE, "dppo")] = 1e-3
    """Weight of the squared log-ratio that `dppo` adds to the loss."""
    budget: Annotated[float, Field(gt=0), OnlyWith(USE, "m2po")] = 0.04
    """Largest mean of the squared log-ratios of those tokens that `m2po` would move further away."""
    filter_low: Annotated[float, Field(ge=0), OnlyWith(f"{WHERE}.filter_high")] = 0.0
    """Smallest geometric mean of a sample's ratios; a sample below it is not trained."""
    filter_high: float = Field(default=0.0, ge=0)
    """Largest geometric mean of a sample's ratios; a sample above it is not trained. 0 turns both bounds off."""
    filter_worse: float = Field(default=0.0, ge=0)
    """Largest mean of log μ − log π of a sample with a negative advantage; one above it is not trained (DeepSeek-V3.2).
    0 turns this off."""

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, values: Any) -> Any:
        """Returns the values with the preset's for keys that are left out; pydantic refuses what is no preset."""
        if not isinstance(values, dict):
            return values
        preset = PRESETS.get(str(values.get("preset", "dapo")))
        return {**preset.values, **values} if preset else values

    def left_out(self, key: str) -> Any:
        return PRESETS[self.preset].values.get(key, super().left_out(key))

    @property
    def least(self) -> tuple[str, float]:
        """The key that bounds ratios of fresh data from below, and the least ratio that it lets through.

        With the anchor `old` the learner evaluates both sides of the ratio by whole distributions: nothing bounds it.
        """
        return ("", 0.0) if self.anchor == "old" else USES[self.use].least(self)


def correction_contradictions(correction: Correction) -> Iterator[Problem]:
    """Yields every contradiction between the keys of the section."""
    name, level, anchor = correction.use, correction.level, correction.anchor
    use = USES[name]
    if level not in use.levels:
        what = f'"{level}" does not go with use = "{name}", which {use.reason}'
        yield Problem(f"{WHERE}.level", what, f"set {' or '.join(use.levels)}, or another use")
    if (anchor != "behaviour" and not use.anchored) or (anchor == "proximal" and level != "token"):
        what = f'"{anchor}" does not go with use = "{name}" at level "{level}", which the behaviour policy defines'
        *others, last = (word for word, one in USES.items() if one.anchored)
        at_level = ' at level "token"' if anchor == "proximal" else ""
        yield Problem(f"{WHERE}.anchor", what, f'set "behaviour", or {", ".join(others)} or {last}{at_level}')
    if name == "mask" and correction.mask_low >= correction.mask_high:
        yield Problem(f"{WHERE}.mask_high", "is not above mask_low: every token would be masked", "raise it")
    if correction.filter_high and not correction.filter_low < 1 < correction.filter_high:
        what = "and filter_low do not enclose 1: samples of the policy itself would be filtered"
        yield Problem(f"{WHERE}.filter_high", what, "set filter_low below 1, and filter_high above")
