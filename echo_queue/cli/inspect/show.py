"""`show`: the samples of one group in readable form, wherever the group is now, the same on every machine.

The group is searched, in this order, in replay, among the groups trained last (in the store), among partial rollouts,
and among dead tasks. Without a task it is one of the newest update's, else the newest in replay. Where the services do
not answer, those trained last are read from the run's directory on the learner's machine, and so is why prompts died.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from echo_queue.cli.documents import GroupDocument
from echo_queue.cli.inspect.live.watcher import STATUS_DEADLINE_S, last_word, monitor
from echo_queue.cli.output import print_json
from echo_queue.cli.transcript import Words, draw, transcript
from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import Problem, PromptError, ServiceError
from echo_queue.models import config_file
from echo_queue.queue import Monitor, UpdateRecord
from echo_queue.queue.counts import counted
from echo_queue.records import Group, PartialSample, Sample, Tokens, Version
from echo_queue.reporting import trained_groups
from echo_queue.reporting.html import Answers
from echo_queue.reporting.trained_groups import TrainedGroup

BASE, TOKENIZER = "base", "tokenizer.json"
LONGEST = 2_000
"""The characters of an answer that a report shows."""
log = logging.getLogger(__name__)
DEAD_MAX = 10_000
"""The number of dead tasks, those given up last, that are searched."""


@dataclass(frozen=True, eq=False)
class FoundGroup:
    """A group, or its partial rollouts. `where` is in words; `prompt` is None where it is not stored.

    `rewards`: the names of the reward functions.
    """

    task: str
    where: str
    prompt: Tokens | None
    samples: tuple[Sample | PartialSample, ...]
    rewards: tuple[str, ...] = ()


def show(config: Config, task: str | None, *, as_json: bool) -> None:
    """Prints the samples. Raises `PromptError` if none is kept, `ServiceError` if a service is needed and away."""
    found, words = _answered(config, task)
    if found is None:
        what, fix = "no group has been made yet", "`echo-queue status` says what the run waits for"
        if task:
            what = f"no samples of {task} are kept"
            fix = f"the learner keeps the last {counted(config.telemetry.keep_groups, 'group')}: telemetry.keep_groups"
        raise PromptError(Problem("show", what, fix))
    prompt = None if found.prompt is None else words(found.prompt)
    samples = [transcript(sample, words, found.rewards) for sample in found.samples]
    if as_json:
        print_json(GroupDocument(found.task, found.where, prompt, tuple(samples)))
    else:
        draw(Console(highlight=False), f"{found.task}: {found.where}", prompt, samples)


def _answered(config: Config, task: str | None) -> tuple[FoundGroup | None, Words]:
    """Asks the services, and without them the directory. Returns also what decodes the group's tokens."""
    try:
        store = connect_store(config, "monitor", STATUS_DEADLINE_S)
        queue = monitor(config, store)
    except ServiceError:
        if kept := trained_groups.in_directory(config, task):
            return _trained(kept), tokenizer_of(config)
        end = last_word(config)
        if why := next((one for one in (end.dead if end else ()) if task in (None, one.example)), None):
            return FoundGroup(why.example, f"dead: {why.reason}", None, ()), tokenizer_of(config)
        raise
    return find(queue, store, task), tokenizer_of(config, store)


def newest_answers(config: Config) -> Answers | None:
    """Returns the samples of a group that was trained last, the best first; None where no group can be read."""
    try:
        kept = trained_groups.in_directory(config)
        found, words = (_trained(kept), tokenizer_of(config)) if kept else _answered(config, None)
        samples = [one for one in found.samples if isinstance(one, Sample)] if found else []
        if found is None or found.prompt is None or words is _ids or not samples:
            return None
        best_first = sorted(((one.reward, _cut(words(one.tokens))) for one in samples), key=lambda one: -one[0])
        return Answers(f"{found.task}: {found.where}", _cut(words(found.prompt)), best_first)
    except Exception:  # a damaged file of a group or a tokenizer must not end the command that writes the report
        log.warning("the newest answers cannot be shown", exc_info=True)
        return None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def find(queue: Monitor, store: ObjectStore, task: str | None) -> FoundGroup | None:
    """Returns the group of `task`; by default that of the newest update, or else what died last.

    Raises `ServiceError`; `CodecError` for bad bytes.
    """
    newest = None if task else _newest_update(queue)
    task = newest.task if newest else task
    if group := queue.group_in_replay(task):
        return _of_group(group, _trained_in(newest.version) if newest else _in_replay(queue, group.task))
    if kept := trained_groups.in_store(store, task):
        return _trained(kept)
    return _unfinished(queue, task)


def _newest_update(queue: Monitor) -> UpdateRecord | None:
    """Returns the newest update, unless a learner that began anew has left its version behind."""
    newest = queue.newest_update()
    return newest if newest and newest.version.number <= queue.figures().learner.number else None


def _trained_in(version: Version) -> str:
    return f"trained, in the update that made {version}"


def _in_replay(queue: Monitor, task: str) -> str:
    if queue.is_drained(task):
        return "complete, and in the learner's hands: trained since the last checkpoint, or about to be"
    return "complete, and not trained yet"


def _unfinished(queue: Monitor, task: str | None) -> FoundGroup | None:
    if task and (partials := queue.partial_group(task)):
        return FoundGroup(task, "in progress; its worker has stored so far", None, partials.samples)
    for dead in queue.dead(limit=DEAD_MAX if task else 1):
        if task in (None, dead.id):
            of = f" after {counted(dead.attempts, 'attempt')}, the last by {dead.worker}" if dead.worker else ""
            return FoundGroup(dead.id, f"dead{of}: {dead.reason}", None, ())
    return None


def _trained(kept: TrainedGroup) -> FoundGroup:
    return _of_group(kept.group, _trained_in(kept.version))


def _of_group(group: Group, where: str) -> FoundGroup:
    where = f"{where}; made by {group.worker}"
    return FoundGroup(group.task, where, group.prompt, group.samples, group.rewards)


def tokenizer_of(config: Config, store: ObjectStore | None = None) -> Words:
    """Returns the decoder of the base model's tokenizer: of its folder, of the hub's cache, of the trained model, or of
    the folder that the learner stored. Without any, token ids are written.

    Special tokens are written as well: those of a chat template are all that divides its roles.
    """
    from tokenizers import Tokenizer

    cached = config_file.find(config)
    folders = (Path(config.base_model), *([cached.parent] if cached else []), config.run.dir / "model")
    path = next((folder / TOKENIZER for folder in folders if (folder / TOKENIZER).is_file()), None)
    try:
        data = path.read_bytes() if path else store.get(f"{BASE}/{TOKENIZER}") if store else None
    except MissingObject:
        data = None
    if data is None:
        return _ids
    tokenizer = Tokenizer.from_buffer(data)
    return lambda tokens: str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))


def _ids(tokens: Tokens) -> str:
    return " ".join(map(str, tokens.tolist()))
