"""Chips per hand of model folders on deals that were never trained, against the configuration's opponent.

    python -m benchmarks.poker                       the base and the final model of configs/poker.toml, run if need be
    python -m benchmarks.poker MODEL_DIR ... [--config configs/poker.toml] [--hands 4000] [--json]

Every model plays the same deals, greedily and sampled, from both seats. The last model is compared with the first hand
by hand: the mean difference, its 95 % interval, and z, the difference over its standard error. The benchmark shares the
poker table with the pipeline, but neither its engine nor its scorer: it uses `AutoModelForCausalLM.from_pretrained` and
`generate`.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.rows import Rows
from benchmarks.runs import models
from benchmarks.verdict import print_verdict
from configs.poker import Hand, Hands
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.records import PromptRow
from workers.prompt_encoder import PromptEncoder

HELD_OUT_SEED_OFFSET = 200_000_000
"""Distance from the run's own seed; the warm-up's deals are half as far."""
MOVE_TOKENS = 8
BATCH = 500
Z_95 = 1.96
Z_CLEAR = 3.29
"""A difference of so many standard errors occurs by chance once in a thousand times."""


@dataclass(frozen=True)
class Played:
    """`chips`: the mean per hand, with half its 95 % interval; `forfeits`: the share of hands given up."""

    model: str
    how: str
    hands: int
    chips: float
    interval: float
    forfeits: float


@dataclass(frozen=True)
class Gain:
    """The gain of the last model over the first, on the same deals."""

    how: str
    chips: float
    interval: float
    z: float


@torch.inference_mode()
def play(folder: Path, config: Config, deals: Hands, hands: int, sampled: bool) -> list[tuple[float, bool]]:
    """Returns the chips of each hand, and whether the model forfeited it by an illegal move."""
    torch.manual_seed(config.run.seed)
    prompts = PromptEncoder.open(str(folder), config.model.max_prompt_tokens)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    results: list[tuple[float, bool]] = []
    for first in range(0, hands, BATCH):
        table = [_Seat(Hand(deals.deal(index)), prompts) for index in range(first, min(first + BATCH, hands))]
        while playing := [seat for seat in table if seat.chips is None]:
            for seat, ids in zip(playing, _moves(model, prompts, playing, config, sampled), strict=True):
                seat.move(ids)
        results += [(seat.chips or 0.0, seat.forfeited) for seat in table]
    return results


class _Seat:
    """One hand, with the token ids of its text so far, as a worker would encode them."""

    def __init__(self, hand: Hand, prompts: PromptEncoder) -> None:
        self._hand, self._prompts = hand, prompts
        self._row = PromptRow(hand.prompt, {})
        self.ids: list[int] = prompts.encode(self._row).tolist()
        self.chips: float | None = None
        self.forfeited = False

    def move(self, ids: list[int]) -> None:
        text = self._prompts.decode(ids)
        self.forfeited = self._hand.named(text) is None
        answer = self._hand.reply(text)
        if isinstance(answer, str):
            self.ids += [*ids, *self._prompts.observe(self._row, answer).tolist()]
        else:
            self.chips = answer


def _moves(model: Any, prompts: PromptEncoder, seats: list[_Seat], config: Config, sampled: bool) -> list[list[int]]:
    """Returns the next move of each hand, as token ids up to the stop token."""
    width = max(len(seat.ids) for seat in seats)
    ids = torch.tensor([[0] * (width - len(seat.ids)) + seat.ids for seat in seats])
    mask = torch.tensor([[0] * (width - len(seat.ids)) + [1] * len(seat.ids) for seat in seats])
    how = (
        {"do_sample": True, "temperature": config.rollout.temperature, "top_k": 0} if sampled else {"do_sample": False}
    )
    output = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=MOVE_TOKENS, **how)
    return [_up_to_stop(row, prompts.stop_tokens) for row in output[:, width:].tolist()]


def _up_to_stop(ids: list[int], stop: list[int]) -> list[int]:
    ends = [place for place, token in enumerate(ids) if token in stop]
    return ids[: ends[0] + 1] if ends else ids


def summarise(folder: Path, how: str, played: list[tuple[float, bool]]) -> Played:
    chips = [chips for chips, _ in played]
    forfeits = fmean(forfeited for _, forfeited in played)
    return Played(str(folder), how, len(chips), fmean(chips), Z_95 * stdev(chips) / math.sqrt(len(chips)), forfeits)


def compare(how: str, first: list[tuple[float, bool]], last: list[tuple[float, bool]]) -> Gain:
    gains = [after - before for (before, _), (after, _) in zip(first, last, strict=True)]
    error = stdev(gains) / math.sqrt(len(gains))
    return Gain(how, fmean(gains), Z_95 * error, fmean(gains) / error if error else 0.0)


def main() -> int:
    """Prints the chips; returns 1 if a model's are not known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="*", help="model folders; default: the run's base and final model")
    parser.add_argument("--config", type=Path, default=Path("configs/poker.toml"))
    parser.add_argument("--hands", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    disable_progress_bar()
    config = load(options.config)
    run = config.prompts.options
    deals = Hands(**run | {"seed": run["seed"] + HELD_OUT_SEED_OFFSET, "size": options.hands})
    folders = models(options.config, config, options.model)
    rows, results, gains = Rows(), list[Played](), list[Gain]()
    print(f"{run['game']} against {run['opponent']}, {options.hands} held-out deals, chips a hand")
    for how in ("greedy", "sampled"):
        played = {}
        for folder in folders:
            with rows.row(f"{how}, {folder}"):
                played[folder] = play(folder, config, deals, options.hands, sampled=how == "sampled")
                results.append(one := summarise(folder, how, played[folder]))
                print(f"  {how:8} {one.chips:+.3f} ± {one.interval:.3f}  forfeits {one.forfeits:.1%}  {folder}")
        if played.keys() >= {folders[0], folders[-1]}:
            gains.append(gain := compare(how, played[folders[0]], played[folders[-1]]))
            print(f"  {how:8} {gain.chips:+.3f} ± {gain.interval:.3f}  z = {gain.z:.1f}  the last against the first")
    if options.json:
        clear = {f"z above {Z_CLEAR}": all(gain.z > Z_CLEAR for gain in gains)}
        print_verdict([*results, *gains], rows.promises or clear)
    return 1 if rows.lost else 0


if __name__ == "__main__":
    sys.exit(main())
