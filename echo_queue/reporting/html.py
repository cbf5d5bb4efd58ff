"""`report.html`: the results of a run on one self-contained page, light or dark.

The page is built from the updates, the evaluations and the configuration alone, so it can be made again at any time.
Whether the identity holds, and where the groups are since the last update, is known to the queue only, and shown if the
caller passes its audit.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Literal

import orjson

from echo_queue import __version__
from echo_queue.config import Config, toml_text
from echo_queue.evaluation.results import EvaluationResult, curves
from echo_queue.queue import Audit
from echo_queue.queue.counts import counted, duration, short
from echo_queue.reporting import metrics
from echo_queue.reporting.metrics import Summary, UpdateMetrics

Curves = Mapping[str, Sequence[EvaluationResult]]
"""The results of each evaluation in the surviving history, by its name."""
NOTHING: Curves = {}
SETS_NAMED = 3
"""So many prompt sets, or components, are named at the top of the page."""


@dataclass(frozen=True)
class Tile:
    """One figure at the top of the page."""

    figure: str
    caption: str
    mood: Literal["", "good", "bad"] = ""


@dataclass(frozen=True)
class Answers:
    """The samples of one group as text: (reward, text) of each, the best first. `where` says which group it is."""

    where: str
    prompt: str
    samples: Sequence[tuple[float, str]]


def write(
    config: Config,
    updates: Sequence[UpdateMetrics],
    *,
    audit: Audit | None = None,
    answers: Answers | None = None,
    evaluations: Sequence[EvaluationResult] = (),
) -> Path:
    """Writes `report.html` into the run's directory, and returns its path.

    `audit`: the queue's last, `answers`: the newest ones, as far as they are known.
    """
    path = config.run.dir / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    scores = held_out(config.run.dir)
    page = build(config, updates, audit=audit, scores=scores, answers=answers, evaluations=evaluations)
    path.write_text(page, encoding="utf-8")
    return path


def held_out(directory: Path) -> dict[str, float]:
    """Reads scores by folder ("base", "model") that `python -m benchmarks.held_out --json` wrote to `held_out.json`."""
    path = directory / "held_out.json"
    results = orjson.loads(path.read_bytes())["figures"] if path.exists() else []
    return {Path(result["model"]).name: result["score"] for result in results}


def build(
    config: Config,
    updates: Sequence[UpdateMetrics],
    *,
    audit: Audit | None = None,
    scores: Mapping[str, float],
    answers: Answers | None = None,
    evaluations: Sequence[EvaluationResult] = (),
) -> str:
    """Returns the page. `scores`: the held-out scores of "base" and "model", if they were measured.

    Without an audit, the number of dead prompts is that of the last update.
    """
    summary, evaluated = metrics.summarise(updates), curves(evaluations)
    identity = audit.ok if audit else None
    dead = audit.dead if audit else updates[-1].depths.get("dead") if updates else None
    shown = tiles(config, summary, identity=identity, dead=dead, scores=scores, evaluated=evaluated)
    template = Template((files("echo_queue.reporting") / "report.html").read_text(encoding="utf-8"))
    return template.substitute(
        name=escape(config.run.name),
        subtitle=escape(subtitle(config, updates)),
        tiles="".join(map(_tile, shown)),
        components=_components(config, summary) if summary.components else "",
        plots="".join(_plots(config, updates, summary, audit, evaluated) if updates else _evaluations(evaluated))
        or "<p>No update was trained.</p>",
        answers=_answers(answers) if answers else "",
        settings="".join(_settings(config.model_dump(mode="json"))),
        footer=f"echo-queue {__version__} · all figures are those that the learner recorded",
    )


def tiles(
    config: Config,
    summary: Summary,
    *,
    identity: bool | None,
    dead: int | None,
    scores: Mapping[str, float],
    evaluated: Curves = NOTHING,
) -> Iterator[Tile]:
    """Yields the figures at the top of the page."""
    s = config.staleness.s
    if not summary.updates:
        yield from _evaluation_tiles(evaluated)
        yield from _queue_tiles(identity, dead)
        return
    means = f"reward, means of the first and the last {counted(summary.reward_updates, 'update')}"
    yield Tile(f"{summary.reward_first:.2f} → {summary.reward_last:.2f}", means)
    yield from _evaluation_tiles(evaluated)
    if {"base", "model"} <= scores.keys():
        yield Tile(f"{scores['base']:.2f} → {scores['model']:.2f}", "held-out score, base and final", "good")
    yield Tile(duration(summary.seconds), "from first to last update")
    yield Tile(f"{summary.updates:,}", f"updates of {config.learner.batch_groups} groups")
    yield Tile(f"{summary.samples:,}", f"samples, {short(summary.tokens)} tokens")
    yield Tile(short(summary.tokens_per_s), "tokens trained per second")
    yield Tile(f"{summary.idle_share:.0%}", "learner idle")
    kept = summary.max_lag <= s
    lags = f"mean lag of groups; of tokens {summary.token_lag:.2f}; largest {summary.max_lag}, bound {s}"
    yield Tile(f"{summary.mean_lag:.2f}", lags, "good" if kept else "bad")
    yield Tile(f"{summary.sent_back_share:.1%}", f"sent back as late ({summary.sent_back:,} groups)")
    yield from _queue_tiles(identity, dead)


def _evaluation_tiles(evaluated: Curves) -> Iterator[Tile]:
    for name, curve in evaluated.items():
        means = [one.mean for one in curve if one.mean is not None]
        if len(means) > 1:
            yield Tile(
                f"{means[0]:.2f} → {means[-1]:.2f}", f"{name}, first and last of {len(means):,}; best {max(means):.2f}"
            )
        elif means:
            yield Tile(f"{means[0]:.2f}", f"{name}, evaluated once")


def _queue_tiles(identity: bool | None, dead: int | None) -> Iterator[Tile]:
    if dead:
        yield Tile(f"{dead:,}", "prompts died and are not in the model", "bad")
    if identity is not None:
        yield Tile("kept" if identity else "broken", "identity of the queue", "good" if identity else "bad")


def subtitle(config: Config, updates: Sequence[UpdateMetrics]) -> str:
    """Returns the line under the page's title: the model, and what took part."""
    facts = [f"model {config.model.base}", _sets(config, updates), _workers(config, updates)]
    facts.append(f"S = {config.staleness.s}, κ = {config.staleness.kappa}")
    if updates:
        facts.append(datetime.fromtimestamp(updates[-1].time_s, UTC).strftime("%-d %B %Y, %H:%M UTC"))
    return "\u00a0· ".join(facts)  # a line may end with a dot, and none begins with one


def _sets(config: Config, updates: Sequence[UpdateMetrics]) -> str:
    """Names the components of the mixture, or the prompt sets that were trained, the configured one by its source."""
    if config.mixture:
        named = [f"{name} {share:.0%}" for name, share in config.shares.items()]
        more = len(named) - SETS_NAMED
        return "mixture of " + ", ".join(named[:SETS_NAMED]) + (f" and {more} more" if more > 0 else "")
    source = config.prompts.source or config.prompts.set
    names = list(metrics.sets_of(updates))
    shown = [source if name == config.prompts.set else f"set {name}" for name in names[:SETS_NAMED]] or [source]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {counted(more, 'more set')}" if more > 0 else "")


def _components(config: Config, summary: Summary) -> str:
    """Returns the table of the components that were trained. A share by the weights is that of the configuration."""
    heads = ("component", "reward", "trained", "by weights", "groups", "equal rewards", "length", "cut off")
    weighed = config.shares
    rows = []
    for name, one in summary.components.items():
        cells = [
            name,
            f"{one.reward_first:.2f} → {one.reward_last:.2f}",
            f"{one.share:.1%}",
            f"{weighed[name]:.1%}" if name in weighed else "–",
            f"{one.groups:,}",
            f"{one.zero_variance_groups / one.groups:.0%}",
            f"{one.length_mean:.1f}",
            f"{one.truncated_fraction:.0%}",
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in heads) + "</tr>"
    told = "Rewards are the means of each component's first and last updates; a length is in tokens."
    table = f'<div class="rows"><table>{head}{"".join(rows)}</table></div>'
    return f'<section class="card components"><h2>Mixture</h2><p>{escape(told)}</p>{table}</section>'


def _workers(config: Config, updates: Sequence[UpdateMetrics]) -> str:
    """Says how many workers there were, as far as the updates say it."""
    alive = [update.workers for update in updates if update.workers is not None]
    if not alive:
        return f"{counted(config.rollout.workers, 'rollout worker')} configured"
    fewest = f"{min(alive):,} to " if min(alive) < max(alive) else ""
    return fewest + counted(max(alive), "rollout worker")


def _tile(tile: Tile) -> str:
    return f'<div class="tile {tile.mood}"><b>{escape(tile.figure)}</b><span>{escape(tile.caption)}</span></div>'


def _plots(
    config: Config, updates: Sequence[UpdateMetrics], summary: Summary, audit: Audit | None, evaluated: Curves
) -> Iterator[str]:
    from echo_queue.reporting import plots

    s = config.staleness.s
    by_time, by_samples = plots.reward(updates, by="time"), plots.reward(updates, by="samples")
    restarts = len(plots.restarts_s(updates))
    learners = f" Dashed: the learner began again ({counted(restarts, 'time')})." if restarts else ""
    yield _card("Reward against time", f"The mean of each update, and the running mean.{learners}", by_time)
    yield from _evaluations(evaluated)
    yield from _mixture(config, updates, summary)
    yield _card("Reward against samples", "The same against the number of trained samples.", by_samples)
    yield _card("Lag of trained groups", "The lag of each group's oldest token.", plots.lag_histogram(summary.lags, s))
    yield _card("Learner's time", "Waiting is idle time; a gap means that no learner ran.", plots.learner_time(updates))
    where = "The sum is the number of submitted groups. In hand: trained, and not yet in a checkpoint."
    yield _card("Where every group was", where, plots.depths(updates, audit))
    yield _card("In flight", "Tasks leased or waiting, and groups ready to train.", plots.in_flight(updates))
    yield _card("Speed", "Trained tokens per second of the learner's time.", plots.speed(updates))
    yield from _workers_and_weights(updates)
    yield from _training(updates)


def _evaluations(evaluated: Curves) -> Iterator[str]:
    """Yields a card for each evaluation."""
    from echo_queue.reporting import plots

    for name, curve in evaluated.items():
        newest = next((one for one in reversed(curve) if one.mean is not None), None)
        told = [f"Mean reward of {counted(newest.prompts, 'prompt')}, with its 95% interval."] if newest else []
        told += ["Ring: the best."] if newest else []
        told += ["Cross: given up."] if any(one.given_up for one in curve) else []
        yield _card(f"Evaluation {name}", " ".join(told), plots.held_out(curve))


def _mixture(config: Config, updates: Sequence[UpdateMetrics], summary: Summary) -> Iterator[str]:
    """Yields the cards of the mixture's components, if the run has one."""
    from echo_queue.reporting import plots

    if not summary.components:
        return
    keys = (f"<span>{plots.key(number)}{escape(name)}</span>" for number, name in enumerate(summary.components))
    legend = f'<div class="legend">{"".join(keys)}</div>'
    mean, share = "The running mean of each.", "Of the groups of the updates around each. Dotted: by the weights."
    yield _card("Reward by component", mean, legend + plots.component_rewards(updates))
    yield _card("Share by component", share, legend + plots.component_shares(updates, config.shares))
    yield _card("Answer length by component", mean, legend + plots.component_lengths(updates))
    for name, one in summary.components.items():
        if len(one.rewards_last) > 1:
            yield _card(
                f"Reward functions of {name}", "The mean of each, before its weight.", plots.rewards(updates, name)
            )


def _workers_and_weights(updates: Sequence[UpdateMetrics]) -> Iterator[str]:
    """Yields the cards about workers and the way of weights to them, as far as the updates tell of it."""
    from echo_queue.reporting import plots

    if any(update.workers is not None for update in updates):
        yield _card("Workers", "The number of living workers.", plots.workers(updates))
    if any(update.t_bcast_s or update.pause_s for update in updates):
        yield _card("Time of weights", "From a version's update to its last worker.", plots.weights_s(updates))
    if any(update.store_bytes or update.peer_bytes for update in updates):
        yield _card("Weights read", "By all workers, since the run began.", plots.weights_read(updates))


def _training(updates: Sequence[UpdateMetrics]) -> Iterator[str]:
    """Yields the cards that tell whether training goes well: rewards, answers, gradient and policy."""
    from echo_queue.reporting import plots

    cut = [update.truncated_fraction for update in updates]
    equal = [update.zero_variance_groups / max(update.groups, 1) for update in updates]
    spread = plots.reward_spread(updates)
    if any(len(update.rewards) > 1 and not update.components for update in updates):
        yield _card("Reward functions", "The mean of each, before its weight.", plots.rewards(updates))
    yield _card("Reward spread", "The standard deviation among the samples of an update.", spread)
    yield _card("Answer length", "The mean of each update, and the running mean.", plots.lengths(updates))
    yield _card("Answers cut off", "The share that reached their largest length.", plots.share(updates, cut))
    yield _card("Loss", "It measures no progress; the reward does.", plots.loss(updates))
    yield _card("Learning rate", "In the mean over an update's steps.", plots.learning_rate(updates))
    yield _card("Gradient norm", "Before it is clipped.", plots.grad_norm(updates))
    yield _card("Equal rewards", "The share of prompts that taught nothing.", plots.share(updates, equal))
    yield _card("Entropy", "How undecided the policy is.", plots.entropy(updates))
    if any(update.kl_reference for update in updates):
        yield _card("KL to the base model", "How far the policy is from its beginning.", plots.kl(updates))
    yield _card("Off-policy", "How far the samples' policy was from the trained one.", plots.off_policy(updates))


def _card(title: str, caption: str, plot: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2><p>{escape(caption)}</p>{plot}</section>'


def _answers(answers: Answers) -> str:
    counts = Counter(answers.samples)
    rows = "".join(
        f"<tr><td>{reward:+g}</td><td>{f'{count} ×' if count > 1 else ''}</td><td><pre>{escape(text)}</pre></td></tr>"
        for (reward, text), count in counts.items()
    )
    table = f"<table><tr><th>reward</th><th></th><th>answer</th></tr>{rows}</table>"
    prompt = f"<pre>{escape(answers.prompt)}</pre>"
    head = f"<h2>Newest answers</h2><p>{escape(answers.where)}</p>"
    return f'<section class="card wide answers">{head}{prompt}{table}</section>'


def _settings(values: Mapping[str, Any], path: str = "", *, one_of_several: bool = False) -> Iterator[str]:
    """Yields each section with its keys, as the configuration's file has it; a list of sections one by one."""
    inner = {key: value for key, value in values.items() if _is_section(value) and key != "options"}
    rows = {key: value for key, value in values.items() if key not in inner}
    if rows and path:
        texts = ((key, "–" if value is None else toml_text.value_text(value)) for key, value in rows.items())
        cells = "".join(f"<tr><td>{escape(key)}</td><td>{escape(text)}</td></tr>" for key, text in texts)
        title = f"[[{path}]]" if one_of_several else f"[{path}]"
        yield f"<section><h3>{escape(title)}</h3><table>{cells}</table></section>"
    for key, value in inner.items():
        several = isinstance(value, list)
        for section in value if several else [value]:
            yield from _settings(section, f"{path}.{key}".lstrip("."), one_of_several=several)


def _is_section(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))
