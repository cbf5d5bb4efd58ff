"""The corners of `benchmarks.stability` through the real queue: do runs end where the forced lag says that they end?

    python -m benchmarks.stability_corners [--preset dppo] [--corners 0:1,64:1,64:64] [--seeds 0,1,2]
        [--tasks copy,sort] [--updates 320] [--lr 1e-3] [--json]

A corner is S:κ. Each is trained twice, from the same model: under the forced lag of `benchmarks.stability`, and by
`echo-queue run` with Redis, object store and a worker. The queue is not paced there, so its window is full as long as
the worker is faster than the learner: data is nearly as old as S allows then. `lag` says how old it was, in the mean of
all groups.

The two ways draw their own prompts and samples. `final` is the share of right places in the answers of the newest
weights, `data` the mean reward of the last `LAST` updates' data. A corner agrees if its means of `final` over tasks and
seeds are within `NEAR` points, or within two standard errors of their differences if that is more.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import orjson
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from benchmarks import stability
from benchmarks.rows import Rows
from benchmarks.runs import echo_queue
from benchmarks.stability import FRESH, GROUPS, LENGTH, SYMBOLS, TASKS, Setting
from benchmarks.verdict import conclude
from echo_queue.reporting import metrics

BUILD = Path("build/stability_corners").absolute()
CONFIG = Path(__file__).with_suffix(".toml")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"[:SYMBOLS] + "="
EVALUATIONS = 3
LAST = 20
NEAR = 3.0


def right_places(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **_: object) -> list[float]:
    """Returns the share of right places of each completion. It is the reward function of the runs."""
    pairs = zip(completions, answer, strict=True)
    return [sum(map(str.__eq__, said, right)) / LENGTH for said, right in pairs]


@dataclass(frozen=True)
class End:
    """The end of one way of training."""

    lag: float
    final: float
    data: float


@dataclass(frozen=True)
class Pair:
    """One setting, trained in both ways."""

    task: str
    s: int
    kappa: int
    seed: int
    forced: End
    queue: End


def forced(setting: Setting) -> End:
    """Trains under a forced lag."""
    run = stability.execute(setting)
    lag = fmean(lag_of(version, setting) for version in range(setting.updates))
    return End(lag, run.final, fmean(run.training_rewards[-LAST:]))


def lag_of(version: int, setting: Setting) -> int:
    """Returns the forced lag of an update: that of the oldest published version that the bound admits."""
    oldest = -(-(version - setting.s) // setting.kappa) * setting.kappa
    return version - max(0, oldest)


def through_the_queue(setting: Setting, preset: str) -> End:
    """Trains the same model by `echo-queue run`."""
    folder = BUILD / f"{setting.task}-s{setting.s}-k{setting.kappa}-{setting.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    stability.model_of(setting.seed).save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    write_prompts(folder / "prompts.jsonl", setting)
    settings = {
        "RUN__SEED": setting.seed,
        "MODEL__BASE": folder / "base",
        "PROMPTS__SET": setting.task,
        "PROMPTS__SOURCE": folder / "prompts.jsonl",
        "STALENESS__S": setting.s,
        "STALENESS__KAPPA": setting.kappa,
        "LEARNER__LR": setting.lr,
        "LEARNER__CORRECTION__PRESET": preset,
    }
    echo_queue("run", CONFIG, folder / "run", settings)
    updates = metrics.read(folder / "run" / "metrics.jsonl")
    engine = AutoModelForCausalLM.from_pretrained(folder / "run" / "model", dtype=torch.float32).eval()
    final = fmean(stability.evaluated(engine, setting.task, seed) for seed in range(EVALUATIONS))
    return End(metrics.summarise(updates).mean_lag, final, fmean(update.reward_mean for update in updates[-LAST:]))


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of one token for each symbol. Nothing ends an answer but its length."""
    words = Tokenizer(models.WordLevel({symbol: number for number, symbol in enumerate(ALPHABET)}, ALPHABET[-1]))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=ALPHABET[-1], padding_side="left")


def write_prompts(path: Path, setting: Setting) -> None:
    """Writes as many prompts as the updates train, with their right answers."""
    draw = torch.Generator().manual_seed(setting.seed)
    prompts = stability.prompts_of(GROUPS * setting.updates, draw)
    answers = TASKS[setting.task](prompts)
    lines = (
        {"prompt": _text(asked) + "=", "answer": _text(right)} for asked, right in zip(prompts, answers, strict=True)
    )
    path.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))


def _text(symbols: Tensor) -> str:
    return "".join(ALPHABET[int(symbol)] for symbol in symbols)


@dataclass(frozen=True)
class Corner:
    """The means of one corner over tasks and seeds. `apart`: points of `final` from the forced lag's to the queue's."""

    s: int
    kappa: int
    pairs: int
    forced: End
    queue: End
    apart: float
    apart_error: float

    @property
    def agrees(self) -> bool:
        return abs(self.apart) <= max(NEAR, 2 * self.apart_error)


def corner_of(pairs: Sequence[Pair]) -> Corner:
    apart = [100 * (pair.queue.final - pair.forced.final) for pair in pairs]
    error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
    forced_end, queue_end = _mean([pair.forced for pair in pairs]), _mean([pair.queue for pair in pairs])
    return Corner(pairs[0].s, pairs[0].kappa, len(pairs), forced_end, queue_end, fmean(apart), error)


def _mean(ends: Sequence[End]) -> End:
    return End(*(fmean(values) for values in zip(*map(astuple, ends), strict=True)))


def table(corners: Sequence[Corner]) -> str:
    rows = [["S", "κ", "pairs", "lag forced / queue", "data forced / queue", "final forced / queue", "points apart"]]
    rows.append(["---"] * len(rows[0]))
    for corner in corners:
        one, two = corner.forced, corner.queue
        row = [
            corner.s,
            corner.kappa,
            corner.pairs,
            f"{one.lag:.1f} / {two.lag:.1f}",
            f"{one.data:.3f} / {two.data:.3f}",
        ]
        rows.append(
            [*map(str, row), f"{one.final:.3f} / {two.final:.3f}", f"{corner.apart:.1f} ± {corner.apart_error:.1f}"]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="dppo")
    parser.add_argument("--corners", default="0:1,64:1,64:64")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", default="copy,sort")
    parser.add_argument("--updates", type=int, default=320)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, corners = Rows(), list[Corner]()
    for s, kappa in (map(int, corner.split(":")) for corner in options.corners.split(",")):
        pairs = []
        for task, seed in product(options.tasks.split(","), map(int, options.seeds.split(","))):
            name = options.preset if s else FRESH
            setting = Setting(name, task, s, kappa, seed, options.updates, options.lr, "warn")
            with rows.row(f"{task}, S = {s}, κ = {kappa}, seed {seed}"):
                pairs.append(Pair(task, s, kappa, seed, forced(setting), through_the_queue(setting, options.preset)))
                print(pairs[-1])
        corners += [corner_of(pairs)] if pairs else []
    print(table(corners))
    held = {f"S = {one.s}, κ = {one.kappa}: the queue ends where the forced lag does": one.agrees for one in corners}
    return conclude(corners, rows.promises | held, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
