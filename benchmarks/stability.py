"""The corrections for stale data under a lag that is forced: how far S may go before learning suffers.

    python -m benchmarks.stability [--presets dapo,tis] [--lags 0,32] [--kappas 1,S] [--seeds 0,1] [--tasks copy,sort]
        [--updates 320] [--mini-batches 1] [--guard warn] [--lr 1e-3] [--engine float32] [--results FILE] [--plot FILE]
        [--json]

There is no queue and no worker: a small model answers prompts itself, by the oldest of its published versions that the
bound S admits, so every update trains data as old as a run with this S may ever see. Versions are published every κ
updates: κ = 1, where each lag is S, and κ = S, where lags run from 1 to S. The learner is the product's (`learn`), with
all its settings. With `--engine bfloat16` the model answers in that type and is trained in float32: an engine whose
log-probabilities are not quite the learner's. After every fourth update the newest weights answer other prompts; that
reward is what is reported.

- A run *collapses* if its reward stays below half of its best for 20 updates. It *declines* if it ends 10 points below
  its best, and is *good* if it ends within 5 points of it.
- `updates to 0.8` is the first update at which the reward is 0.8; `final` is the mean of the last three rewards.
- An alarm of the guard comes in time if it comes 10 updates before the collapse begins, or earlier.

Without options it is a minute's sample; docs/learning.md has the command of a sweep. Each run is a line of
`--results`, and a run that is there already is not repeated: an interrupted sweep goes on.
"""

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import orjson
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.rows import Rows
from benchmarks.verdict import conclude
from echo_queue.config import Learner
from echo_queue.config.corrections import PRESETS
from echo_queue.records import Group, Sample, Span
from learner.diagnostics.guard import Guard
from learner.model.loading import prepare
from learner.model.past_versions import PastVersions
from learner.model.policy import Policy
from learner.update import UpdateResult, learn

RESULTS = Path("runs/benchmarks/stability/runs.jsonl")
SYMBOLS, LENGTH = 6, 3
"""Prompts are `LENGTH` of so many symbols and a separator; answers have as many symbols."""
GROUPS, SAMPLES = 8, 16
EVALUATED = 64
EVALUATE_EVERY = 4
COLLAPSED_FOR = 20
LEAD = 10
TARGET = 0.8
SLOWER = 1.3
"""What S = 32 may cost: this multiple of the updates that S = 0 takes to the target."""
FRESH = "fresh"
"""The name of S = 0 in the table."""
TASKS: dict[str, Callable[[Tensor], Tensor]] = {"copy": lambda prompts: prompts, "sort": lambda p: p.sort(-1).values}
"""The right answers [N, LENGTH] to prompts [N, LENGTH]; the reward is the share of the places that are right."""


class Setting(NamedTuple):
    """The choices of one run."""

    preset: str
    task: str
    s: int
    kappa: int
    seed: int
    updates: int
    lr: float
    guard: str
    mini_batches: int = 1
    engine: str = "float32"


@dataclass(frozen=True)
class Run:
    """The course of one run. `rewards`: of the newest weights after every `EVALUATE_EVERY` updates."""

    setting: Setting
    rewards: tuple[float, ...]
    ess_tokens: tuple[float, ...]
    """The tokens' effective sample size in every update; all that follows has a value for each update as well."""
    ess_samples: tuple[float, ...]
    second_moments: tuple[float, ...]
    grad_norms: tuple[float, ...]
    entropies: tuple[float, ...]
    kl_behaviours: tuple[float, ...]
    clip_fractions: tuple[float, ...]
    training_rewards: tuple[float, ...]
    """Mean rewards of what each update trains, which is as old as its data."""

    @property
    def final(self) -> float:
        return fmean(self.rewards[-3:])

    @property
    def updates_to_target(self) -> int | None:
        return next((EVALUATE_EVERY * (n + 1) for n, reward in enumerate(self.rewards) if reward >= TARGET), None)

    @property
    def collapsed_at(self) -> int | None:
        """The update from which on the reward stayed below half of its best for `COLLAPSED_FOR` updates; else None."""
        best, low = 0.0, 0
        for number, reward in enumerate(self.rewards, 1):
            best = max(best, reward)
            low = low + 1 if reward < best / 2 else 0
            if low * EVALUATE_EVERY > COLLAPSED_FOR:
                return EVALUATE_EVERY * (number - low + 1)
        return None

    @property
    def alarms(self) -> list[int]:
        """The updates in which the guard raises an alarm."""
        guard = Guard("warn", self.setting.s + 1)
        return [n for n, kl in enumerate(self.kl_behaviours, 1) if guard.look(kl)]

    @property
    def declined(self) -> bool:
        return self.final < max(self.rewards) - 0.1

    @property
    def good(self) -> bool:
        return self.final >= max(self.rewards) - 0.05

    @property
    def warned_in_time(self) -> bool:
        return self.collapsed_at is not None and any(at <= self.collapsed_at - LEAD for at in self.alarms)


def execute(setting: Setting) -> Run:
    """Trains once, from the model that the seed makes."""
    draw = torch.Generator().manual_seed(setting.seed)
    engine = model_of(setting.seed).to(getattr(torch, setting.engine))
    correction = {} if setting.preset == FRESH else {"preset": setting.preset}
    same = {"lr": setting.lr, "guard": setting.guard, "mini_batches": setting.mini_batches}
    settings = Learner.model_validate(same | {"correction": correction})
    policy = Policy(prepare(model_of(setting.seed)), settings)
    past = PastVersions(policy, setting.s) if settings.needs_old else None
    published = deque([(0, policy.snapshot())])
    rewards, course = [], []
    for version in range(setting.updates):
        while len(published) > 1 and published[1][0] <= version - setting.s + setting.kappa - 1:
            published.popleft()
        number, weights = published[0]
        engine.load_state_dict(weights, strict=False)
        groups = groups_of(engine, setting.task, number, draw)
        result = learn(policy, groups, version + 1, settings, 1.0, past=past)
        course.append(_figures(result, groups))
        if (version + 1) % setting.kappa == 0:
            published.append((version + 1, policy.snapshot()))
        if (version + 1) % EVALUATE_EVERY == 0:
            engine.load_state_dict(policy.snapshot(), strict=False)
            rewards.append(evaluated(engine, setting.task))
    return Run(setting, tuple(rewards), *zip(*course, strict=True))


def _figures(result: UpdateResult, groups: Sequence[Group]) -> tuple[float, ...]:
    """Returns the figures of an update in the order of the fields of `Run`."""
    ratios, sums = result.ratios, result.sums
    return (
        ratios.ess_tokens,
        ratios.ess_samples,
        ratios.second_moment,
        result.grad_norm,
        sums.mean(sums.entropy),
        sums.mean(sums.kl_behaviour),
        sums.mean(sums.clipped),
        fmean(sample.reward for group in groups for sample in group.samples),
    )


def model_of(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    model: PreTrainedModel = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=SYMBOLS + 1,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=12,
            intermediate_size=96,
            initializer_range=0.1,
            max_position_embeddings=32,
            tie_word_embeddings=True,
        )
    ).eval()
    return model


def prompts_of(count: int, draw: torch.Generator) -> Tensor:
    return torch.randint(0, SYMBOLS, (count, LENGTH), generator=draw)


@torch.no_grad()
def answers(engine: PreTrainedModel, prompts: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Samples an answer to each prompt: tokens and their log-probabilities, both [N, LENGTH]."""
    text, logprobs = torch.cat([prompts, torch.full((len(prompts), 1), SYMBOLS)], 1), []
    for _ in range(LENGTH):
        scores = torch.log_softmax(engine(text).logits[:, -1].float(), -1)
        chosen = torch.multinomial(scores.exp(), 1, generator=draw)
        logprobs.append(scores.gather(-1, chosen))
        text = torch.cat([text, chosen], 1)
    return text[:, LENGTH + 1 :], torch.cat(logprobs, 1)


def groups_of(engine: PreTrainedModel, task: str, version: int, draw: torch.Generator) -> list[Group]:
    prompts = prompts_of(GROUPS, draw)
    repeated = prompts.repeat_interleave(SAMPLES, 0)
    tokens, logprobs = answers(engine, repeated, draw)
    rewards = right(task, repeated, tokens)
    groups = []
    for index, prompt in enumerate(prompts):
        own = slice(index * SAMPLES, (index + 1) * SAMPLES)
        samples = tuple(
            Sample(drawn.int().numpy(), behaviour.numpy(), (Span(0, version),), float(reward), "stop")
            for drawn, behaviour, reward in zip(tokens[own], logprobs[own], rewards[own], strict=True)
        )
        asked = torch.cat([prompt, torch.tensor([SYMBOLS])]).int().numpy()
        groups.append(Group(f"set/0/{index}", "set", 0, index, 1, "worker", 1, asked, samples))
    return groups


def right(task: str, prompts: Tensor, tokens: Tensor) -> Tensor:
    """Returns the share of right places, [N]."""
    return (tokens == TASKS[task](prompts)).float().mean(1)


def evaluated(engine: PreTrainedModel, task: str, seed: int = 10_000) -> float:
    draw = torch.Generator().manual_seed(seed)
    prompts = prompts_of(EVALUATED, draw)
    return float(right(task, prompts, answers(engine, prompts, draw)[0]).mean())


def settings_of(options: argparse.Namespace) -> Iterator[Setting]:
    """Yields what is to be run. On fresh data, S = 0, one run with the default correction stands for all: in updates of
    one step they are the same."""
    presets, kappas = options.presets.split(","), options.kappas.split(",")
    lags = [int(s) for s in options.lags.split(",")]
    for seed, task, s in product(map(int, options.seeds.split(",")), options.tasks.split(","), lags):
        periods = dict.fromkeys(s if kappa == "S" else int(kappa) for kappa in kappas) if s else (1,)
        for preset, kappa in product(presets if s else (FRESH,), periods):
            more = options.updates, options.lr, options.guard, options.mini_batches, options.engine
            yield Setting(preset, task, s, kappa, seed, *more)


def stored(path: Path) -> dict[Setting, Run]:
    """Returns the runs of a file. One that lacks a figure that runs have today does not count."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    names = {one.name for one in fields(Run)}
    runs = [_run_of(values) for values in map(orjson.loads, lines) if values.keys() == names]
    return {run.setting: run for run in runs}


def _run_of(values: dict[str, Any]) -> Run:
    setting = Setting(**values.pop("setting"))
    return Run(setting, **{name: tuple(course) for name, course in values.items()})


def sweep(settings: Sequence[Setting], path: Path, rows: Rows) -> list[Run]:
    """Returns a run of each setting, the lost ones left out; those that are not in the file yet are made, and added to
    it."""
    done = stored(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        for setting in settings:
            if setting in done:
                continue
            with rows.row(str(setting)):
                run = execute(setting)
                file.write(orjson.dumps(asdict(run) | {"setting": setting._asdict()}, option=orjson.OPT_APPEND_NEWLINE))
                done[setting] = run
                print(f"{setting}: {run.final:.3f}")
    return [done[setting] for setting in settings if setting in done]


@dataclass(frozen=True)
class Cell:
    """The runs of one preset, S and κ, over seeds and tasks."""

    preset: str
    s: int
    kappa: int
    runs: int
    final: float
    behind: float | None
    """Points of reward below S = 0 with the same seeds and tasks; None where those were not run."""
    behind_error: float | None
    """The standard error of `behind`, by the differences of the runs; None for a single one."""
    updates_to_target: float | None
    """The mean; None if a run never got there."""
    slower: float | None
    """`updates_to_target` as a multiple of S = 0's."""
    collapsed: int
    warned: int
    """Collapses of which the guard warned in time."""
    declined: int
    declined_alarmed: int
    """Runs that declined and had an alarm."""
    good: int
    good_alarmed: int
    """Good runs with an alarm."""
    least_ess_tokens: float


Fresh = Mapping[tuple[str, int], Run]
"""The runs with S = 0, by task and seed."""


def fresh_of(runs: Sequence[Run]) -> Fresh:
    return {(run.setting.task, run.setting.seed): run for run in runs if not run.setting.s}


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    fresh = fresh_of(runs)
    keys = sorted({(run.setting.preset, run.setting.s, run.setting.kappa) for run in runs})
    return [_cell([run for run in runs if _key(run) == key], fresh) for key in keys]


def _key(run: Run) -> tuple[str, int, int]:
    return run.setting.preset, run.setting.s, run.setting.kappa


def _cell(runs: Sequence[Run], fresh: Fresh) -> Cell:
    preset, s, kappa = _key(runs[0])
    base = [fresh.get((run.setting.task, run.setting.seed)) for run in runs]
    compared = [one for one in base if one]
    whole = len(compared) == len(runs)
    differences = [100 * (one.final - run.final) for one, run in zip(compared, runs, strict=True)] if whole else []
    needed, needed_fresh = _mean_updates(runs), _mean_updates(compared)
    return Cell(
        preset=preset,
        s=s,
        kappa=kappa,
        runs=len(runs),
        final=fmean(run.final for run in runs),
        behind=fmean(differences) if whole else None,
        behind_error=stdev(differences) / len(runs) ** 0.5 if len(differences) > 1 else None,
        updates_to_target=needed,
        slower=needed / needed_fresh if whole and needed and needed_fresh else None,
        collapsed=sum(run.collapsed_at is not None for run in runs),
        warned=sum(run.warned_in_time for run in runs),
        declined=sum(run.declined for run in runs),
        declined_alarmed=sum(run.declined and bool(run.alarms) for run in runs),
        good=sum(run.good for run in runs),
        good_alarmed=sum(run.good and bool(run.alarms) for run in runs),
        least_ess_tokens=min(min(run.ess_tokens) for run in runs),
    )


def _mean_updates(runs: Sequence[Run]) -> float | None:
    needed = [run.updates_to_target for run in runs]
    return fmean(found) if (found := [n for n in needed if n is not None]) and len(found) == len(needed) else None


def targets(runs: Sequence[Run], cells: Sequence[Cell]) -> dict[str, bool]:
    """Returns the promises that these runs can show, and whether they are kept."""
    held: dict[str, bool] = {}
    for s, points in ((32, 3), (64, 5)):
        by_preset = [[cell for cell in cells if (cell.preset, cell.s) == (preset, s)] for preset in PRESETS]
        compared = [found for found in by_preset if any(cell.behind is not None for cell in found)]
        if compared:
            held[f"S = {s}: a preset within {points} points of S = 0"] = any(_near(each, points) for each in compared)
            if s == 32:
                name = f"S = 32: such a preset takes at most {SLOWER} times the updates to 0.8"
                held[name] = any(_near(each, points) and _fast(each) for each in compared)
    collapsed = [run for run in runs if run.collapsed_at is not None]
    if runs[0].setting.guard == "act":
        held["no run collapses while the guard acts"] = not collapsed
    elif collapsed:
        in_time = sum(run.warned_in_time for run in collapsed)
        held["the guard warns of 95 % of the collapses in time"] = in_time >= 0.95 * len(collapsed)
    if well := [run for run in runs if run.good]:
        held["at most one good run in ten has an alarm"] = sum(bool(run.alarms) for run in well) <= len(well) / 10
    return held


def _near(cells: Sequence[Cell], points: float) -> bool:
    """Returns whether no κ that was run ends more than `points` behind S = 0."""
    return all(cell.behind is not None and cell.behind <= points for cell in cells)


def _fast(cells: Sequence[Cell]) -> bool:
    """Returns whether no κ that was run takes more than `SLOWER` times the updates to the target that S = 0 takes."""
    return all(cell.slower is not None and cell.slower <= SLOWER for cell in cells)


def table(cells: Sequence[Cell]) -> str:
    names = ["preset", "S", "κ", "runs", "final", "behind S = 0", "updates to 0.8", "collapsed / warned"]
    names += ["declined / alarm", "good / alarm", "least ESS"]
    return "\n".join(f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *map(_row, cells)])


def _row(cell: Cell) -> tuple[str, ...]:
    return (
        f"`{cell.preset}`",
        *map(str, (cell.s, cell.kappa, cell.runs)),
        f"{cell.final:.3f}",
        _text(cell.behind, ".1f") + ("" if cell.behind_error is None else f" ± {cell.behind_error:.1f}"),
        _text(cell.updates_to_target, ".0f"),
        f"{cell.collapsed} / {cell.warned}",
        f"{cell.declined} / {cell.declined_alarmed}",
        f"{cell.good} / {cell.good_alarmed}",
        f"{cell.least_ess_tokens:.2f}",
    )


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Draws the final reward against S, for each kind of κ that was run."""
    import matplotlib as mpl  # a run that draws nothing needs none

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    by_kind = {
        "κ = 1": [cell for cell in cells if cell.kappa == 1],
        "κ = S": [cell for cell in cells if cell.kappa == max(1, cell.s)],
    }
    shown = {name: found for name, found in by_kind.items() if any(cell.s > 1 for cell in found)}
    figure, axes = plt.subplots(1, len(shown), figsize=(4.5 * len(shown), 3.4), layout="constrained", squeeze=False)
    for axis, (name, found) in zip(axes[0], shown.items(), strict=True):
        fresh = [cell for cell in found if not cell.s]
        for preset in sorted({cell.preset for cell in found if cell.s}):
            line = [*fresh, *(cell for cell in found if cell.preset == preset)]
            axis.plot([cell.s for cell in line], [cell.final for cell in line], marker="o", label=preset)
        axis.set(title=name, xlabel="S (updates)", ylabel="final reward", ylim=(0, 1))
        axis.set_xticks(sorted({cell.s for cell in found}))
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="dapo,dppo")
    parser.add_argument("--lags", default="0,32")
    parser.add_argument("--kappas", default="1")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--tasks", default="sort")
    parser.add_argument("--updates", type=int, default=320)
    parser.add_argument("--mini-batches", type=int, default=1)
    parser.add_argument("--guard", choices=("off", "warn", "act"), default="warn")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--engine", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = sweep(list(settings_of(options)), options.results, rows := Rows())
    cells = cells_of(runs)
    print(table(cells))
    if options.plot:
        with rows.row("the plot"):
            plot(cells, options.plot)
    return conclude(cells, rows.promises or targets(runs, cells), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
