"""`show`: the samples of one group in readable form, wherever the group is now.

The group is searched, in this order, among those trained last (in the run's directory, so that no service need run any
more), in replay, among partial rollouts, and among dead tasks. Without a task it is the newest of the first two.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from echo_queue.cli.live.watcher import monitor
from echo_queue.cli.output import print_json
from echo_queue.cli.transcript import Transcript, Words, draw, transcript
from echo_queue.config import Config
from echo_queue.errors import Problem, PromptError
from echo_queue.queue import Monitor
from echo_queue.records import Group, PartialSample, Sample, Tokens
from echo_queue.reporting.trained_groups import TrainedGroups

DEAD_MAX = 10_000
"""The number of dead tasks, those given up last, that are searched."""


@dataclass(frozen=True, eq=False)
class FoundGroup:
    """A group, or its partial rollouts. `where` is in words; `prompt` is None where it is not stored."""

    task: str
    where: str
    prompt: Tokens | None
    samples: tuple[Sample | PartialSample, ...]


def show(config: Config, task: str | None, *, as_json: bool) -> None:
    """Prints the samples. Raises `PromptError` if none is kept, `ServiceError` if Redis is needed and away."""
    found = _trained(config, task) or _queued(monitor(config), task)
    if found is None:
        what = f"no samples of {task} are kept" if task else "no group has been made yet"
        fix = f"the learner keeps the last {config.telemetry.keep_groups} groups: telemetry.keep_groups"
        raise PromptError(Problem("show", what, fix))
    words = tokenizer_of(config)
    prompt = None if found.prompt is None else words(found.prompt)
    samples = [transcript(sample, words) for sample in found.samples]
    if as_json:
        document = {"task": found.task, "where": found.where, "prompt": prompt}
        print_json(document | {"samples": [_plain(sample) for sample in samples]})
    else:
        draw(Console(highlight=False), f"{found.task}: {found.where}", prompt, samples)


def _trained(config: Config, task: str | None) -> FoundGroup | None:
    kept = TrainedGroups(config).find(task)
    return None if kept is None else _of_group(kept.group, f"trained, in the update that made {kept.version}")


def _queued(queue: Monitor, task: str | None) -> FoundGroup | None:
    if group := queue.group_in_replay(task):
        return _of_group(group, "complete, and not trained yet")
    if task is None:
        return None
    if partials := queue.partial_group(task):
        return FoundGroup(task, "in progress; its worker has stored so far", None, partials.samples)
    for dead in queue.dead(limit=DEAD_MAX):
        if dead.id == task:
            where = f"dead after {dead.attempts} attempts, the last by {dead.worker}: {dead.reason}"
            return FoundGroup(task, where, None, ())
    return None


def _of_group(group: Group, where: str) -> FoundGroup:
    return FoundGroup(group.task, f"{where}; made by {group.worker}", group.prompt, group.samples)


def tokenizer_of(config: Config) -> Words:
    """Returns the decoder of the base model's folder; without a tokenizer there (a hub model) it prints token ids."""
    from tokenizers import Tokenizer

    path = Path(config.base_model) / "tokenizer.json"
    if not path.is_file():
        return lambda tokens: " ".join(map(str, tokens.tolist()))
    tokenizer = Tokenizer.from_file(str(path))
    return lambda tokens: str(tokenizer.decode(tokens.tolist(), skip_special_tokens=True))


def _plain(sample: Transcript) -> dict[str, object]:
    return asdict(sample) | {"drawn": {str(version): count for version, count in sample.drawn.items()}}
