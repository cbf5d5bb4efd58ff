"""One update of the learner on this machine's device: tokens/s, MFU, memory and stalls, beside plain transformers.

- The models have the shapes of real ones and random weights; groups are random tokens of fixed lengths. Nothing is read
  from a network. The formula of MFU stands at the head of `benchmarks/learner/work.py`.
- The baselines are transformers' own forward pass with `sdpa`, in which every sample carries its prompt, with the same
  optimizer, precision, micro-batch size and activation checkpointing; the head, ours or TRL's, sees the drawn tokens
  only.
- A row is printed, and appended to the file of `--rows`, as soon as it is known: first the update's figures, then again
  with the parts of its seconds, with its roofline (`roofline.py`; not with `--compile`, not of several ranks), and with
  each of its stages. What fails takes nothing with it that was known.
- `--ranks N` measures N processes, one for each GPU; `--fake` runs all of it with tiny shapes, on a CPU as well.
"""

import argparse
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import torch

from benchmarks.learner.rates import rates
from benchmarks.learner.rows import Extent, Row, measured, name_of, shown, targets
from benchmarks.learner.trainers import WAYS
from benchmarks.learner.work import MIXES, SHAPES, Mix
from benchmarks.rows import Rows, append
from benchmarks.verdict import conclude
from echo_queue.config import Config
from echo_queue.launch.backoff import RestartBackoff
from learner.model import device
from learner.ranks import launcher
from learner.ranks.place import ALONE, Place
from learner.ranks.rendezvous import join

ONCE = RestartBackoff(first_pause_s=0.1, longest_pause_s=0.1, settled_s=1e9, most_ends=1)
"""A rank that ends with an error ends the benchmark."""


def main() -> int:
    options = _options()
    place = Place.of(os.environ)
    if place is None and options.ranks > 1:
        return launcher.launch([sys.executable, "-m", "benchmarks.learner", *sys.argv[1:]], options.ranks, ONCE)
    if place is not None and place.launched:
        launcher.end_with_launcher()
    if options.deterministic:
        device.compute_deterministically()
    where = device.choose("auto", place or ALONE)
    kind = "fake" if options.fake else "real"
    known = None if options.compile != "none" or options.ranks > 1 else rates(where)
    extent = Extent(options.repeats, known, options.ways, stages=options.stages)
    team = join(
        _config(options.mixes[0], options, SHAPES[kind][options.shapes[0]].micro_tokens),
        place,
        where,
        threading.Event(),
    )
    how = f"{options.activation_checkpointing} activation checkpointing"
    how += "" if options.compile == "none" else f", compiled {options.compile}"
    how += ", deterministic" if options.deterministic else ""
    how += ", offloaded" if options.offload else ""
    if team.first:
        print(f"torch {torch.__version__}, {team.size} x {name_of(where)}, {how}", flush=True)
    rows, found = Rows(), list[Row]()
    for name in options.shapes:
        shape = SHAPES[kind][name].cut(options.layers)
        for micro_tokens, mix in product(options.micro_tokens or [shape.micro_tokens], options.mixes):
            row = Row(f"{name}{shape}", str(mix), micro_tokens, team.size)
            config = _config(mix, options, micro_tokens, shape.rank)
            for one in measured(row, shape, mix, config, rows, where=where, team=team, extent=extent):
                if found and one.continues(found[-1]):
                    found.pop()
                found.append(one)
                if team.first:
                    shown(one)
                    if options.rows:
                        append(options.rows, one)
    team.settle()
    compiled = options.compile != "none"
    promised = targets(found, name_of(where), options.activation_checkpointing, compiled=compiled)
    return conclude(found, rows.promises | promised, as_json=options.json) if team.first else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--fake", action="store_true", help="tiny shapes")
    parser.add_argument("--shapes", nargs="+", metavar="SHAPE", help="default: all of them")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has; stated with the figures")
    parser.add_argument("--micro-tokens", type=int, nargs="+", help="default: 16384; of 8B 8192")
    parser.add_argument("--mixes", nargs="+", metavar="P+T", help="lengths of prompt and completion; default: all")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="default: all of them")
    parser.add_argument("--no-stages", dest="stages", action="store_false", help="neither publication nor checkpoint")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append each row to it, as JSON, once it is known")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="number of processes that share the model")
    parser.add_argument("--activation-checkpointing", choices=("none", "selective", "full"), default="full")
    parser.add_argument("--compile", choices=("none", "elementwise", "layers"), default="none")
    parser.add_argument("--deterministic", action="store_true", help="with learner.deterministic")
    parser.add_argument("--offload", action="store_true", help="with learner.offload")
    options = parser.parse_args()
    kind = "fake" if options.fake else "real"
    options.shapes = _chosen(parser, "--shapes", options.shapes, SHAPES[kind])
    mixes = {mix.lengths: mix for mix in MIXES[kind]}
    options.mixes = [mixes[name] for name in _chosen(parser, "--mixes", options.mixes, mixes)]
    if not torch.cuda.is_available() and not options.fake:
        parser.error("there is no GPU here: run it with --fake, or on a machine that has one")
    return options


def _chosen(
    parser: argparse.ArgumentParser, option: str, names: Sequence[str] | None, known: Mapping[str, object]
) -> list[str]:
    """Returns the names that were given, or all of them; of one that is not known, the parser says so and exits."""
    if unknown := [name for name in names or () if name not in known]:
        parser.error(f"{option}: there is no {unknown[0]!r}; there are {', '.join(known)}")
    return [*(names or known)]


def _config(mix: Mix, options: argparse.Namespace, micro_tokens: int, rank: int = 0) -> Config:
    """Returns the configuration of a run whose groups are those of `mix`."""
    learner = {
        "batch_groups": mix.groups,
        "micro_tokens": micro_tokens,
        "activation_checkpointing": options.activation_checkpointing,
        "compile": options.compile,
        "deterministic": options.deterministic,
        "offload": options.offload,
        "ranks": options.ranks,
        "lr": 1e-6,
    }
    model = {
        "dtype": "bfloat16",
        "lora": {"rank": rank},
        "max_prompt_tokens": mix.prompt,
        "max_new_tokens": mix.completion,
    }
    return Config.model_validate(
        {
            "run": {"name": "benchmark", "dir": "runs/benchmark"},
            "model": model,
            "rollout": {"group_size": mix.samples},
            "learner": learner,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
