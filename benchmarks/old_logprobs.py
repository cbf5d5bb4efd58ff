"""The cost of exact old log-probabilities: updates with the anchors `old` and `behaviour`, in turns, on the same data.

    python -m benchmarks.old_logprobs [--s 8] [--repeats 5] [--dtypes bfloat16,float32] [--json]

A model of random weights trains groups of random tokens. Each group was drawn by one version, and their lags run from
0 to S. Both learners are the product's (`learn`); the first S updates of each are not counted. Beside the seconds stand
the memory of the reverse deltas, as a share of the weights that are published, and the share of values that an update
changes.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch

from benchmarks.learner.timing import timed
from benchmarks.learner.work import QWEN3, Mix, Shape, random_model
from benchmarks.verdict import conclude
from echo_queue.config import Learner
from echo_queue.records import Group, Span
from learner.model import device
from learner.model.loading import prepare
from learner.model.past_versions import PastVersions
from learner.model.policy import Policy
from learner.update import learn

SIZES = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
         "intermediate_size": 1536, "vocab_size": 8192, "tie_word_embeddings": True}  # fmt: skip
MIX = Mix(prompt=32, completion=64, groups=9, samples=4)
PRESETS = ("ppo", "ppo-tis")
MOST = 1.6
"""A forward pass is a third of an update, and samples of many versions fill fewer micro-batches."""


@dataclass(frozen=True)
class Cost:
    """The figures of one number format. Seconds are those of the median update."""

    dtype: str
    s: int
    behaviour_s: float
    old_s: float
    deltas_share: float
    """Bytes of all reverse deltas, as a share of one publication's."""
    changed: float
    """Share of the published values that the last update changed."""

    @property
    def ratio(self) -> float:
        return self.old_s / self.behaviour_s


class Learning:
    """A policy that is trained with one preset."""

    def __init__(self, preset: str, dtype: torch.dtype, s: int, where: torch.device) -> None:
        self._settings = Learner.model_validate({"correction": {"preset": preset}, "micro_tokens": 2048})
        model = prepare(random_model(Shape(QWEN3 | SIZES), where))
        self.policy, self._number = Policy(model, self._settings, dtype), 0
        self.past = PastVersions(self.policy, s) if self._settings.needs_old else None

    def update(self, groups: Sequence[Group]) -> None:
        self._number += 1
        drawn = [_drawn_by(group, max(0, self._number - 1 - lag)) for lag, group in enumerate(groups)]
        learn(self.policy, drawn, self._number, self._settings, 1.0, past=self.past)


def _drawn_by(group: Group, version: int) -> Group:
    return replace(group, samples=tuple(replace(one, spans=(Span(0, version),)) for one in group.samples))


def costs(dtypes: Sequence[str], s: int, repeats: int, where: torch.device) -> Iterator[Cost]:
    groups = replace(MIX, groups=s + 1).batch(SIZES["vocab_size"])
    for name in dtypes:
        both = [Learning(preset, getattr(torch, name), s, where) for preset in PRESETS]
        seconds: list[list[float]] = [[], []]
        for turn in range(s + repeats):
            before = both[1].policy.snapshot()
            for own, learning in zip(seconds, both, strict=True):
                taken = timed(partial(learning.update, groups))
                own.extend([taken] if turn >= s else [])
        after, past = both[1].policy.snapshot(), both[1].past
        assert past is not None
        changed = sum(int((before[key] != weight).sum()) for key, weight in after.items())
        values, size = sum(map(torch.numel, after.values())), sum(weight.nbytes for weight in after.values())
        yield Cost(name, s, median(seconds[0]), median(seconds[1]), past.nbytes / size, changed / values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--s", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for cost in costs(options.dtypes.split(","), options.s, options.repeats, device.choose("auto", 0)):
        print(
            f"{cost.dtype}, S = {cost.s}: behaviour {cost.behaviour_s:.3f} s, old {cost.old_s:.3f} s, {cost.ratio:.2f}"
            f" times; reverse deltas {cost.deltas_share:.2f} times the weights, {cost.changed:.1%} changed per update",
            flush=True,
        )
        found.append(cost)
    held = {f"{cost.dtype}: an update takes at most {MOST} times as long": cost.ratio <= MOST for cost in found}
    return conclude(found, held, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
