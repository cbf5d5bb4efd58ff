"""What is asked of a model: its configuration, the sets with their prompts, and the tasks that are left to answer."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from blake3 import blake3

from echo_queue.config import Component, Config, Evaluation
from echo_queue.config.checks import contradictions
from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.evaluation.answers_file import Asked, AskedSet
from echo_queue.queue import Chunk
from echo_queue.queue.submitter import digest_of
from echo_queue.records import BASE, PromptRow, PromptShard, Task
from echo_queue.submission.configured_sets import choose, held_out_sets
from echo_queue.submission.declaration import scan
from echo_queue.submission.sources.source import PromptSource

SOURCE = "source"
"""The name of the set that `--source` makes."""
MACHINES = {"processes", "timeout_s", "concurrent_calls"}
"""The settings of an environment that change no reward, and may be others when a command goes on."""


class Wishes(NamedTuple):
    """What the command's options ask for, instead of what the configuration says."""

    name: str = ""
    source: str = ""
    samples: int | None = None
    temperature: float | None = None
    limit: int | None = None


class Prompt(NamedTuple):
    """A task of this command, and its row."""

    task: Task
    row: PromptRow


@dataclass(frozen=True, eq=False)
class ScannedSet:
    """A set whose rows have all been checked. `prompts`: how many of them are asked, from the first one on."""

    evaluation: Evaluation
    source: PromptSource
    chunks: Sequence[Chunk]
    prompts: int

    def asked(self, config: Config) -> AskedSet:
        one = self.evaluation
        environment = config.environment_of(one.name).model_dump_json(exclude=MACHINES)
        return AskedSet(
            one.name,
            digest_of(self.chunks),
            self.prompts,
            one.samples,
            one.temperature,
            one.top_p,
            one.limit(config.model),
            blake3(environment.encode()).hexdigest(16),
            config.selection.reward_success,
        )

    def rows(self) -> Iterator[PromptRow]:
        rows = (row for chunk in self.chunks for row in self.source.read(chunk))
        return islice(rows, self.prompts)


def configured(config: Config, model: str, wishes: Wishes) -> Config:
    """Returns the configuration in which `model` is the base model, and whose evaluations are those that are asked.

    Each has its environment; that of the first one stands for the run's own, so that no other is made. Raises
    `ConfigError`.
    """
    sampling = {"samples": wishes.samples, "temperature": wishes.temperature}
    update = {key: value for key, value in sampling.items() if value is not None}
    evaluations = tuple(
        one.model_copy(update={"environment": one.environment or config.environment, **update})
        for one in _chosen(config, wishes)
    )
    found = config.model_copy(
        update={
            "mixture": (),
            "evaluation": evaluations,
            "environment": evaluations[0].environment,
            "model": config.model.model_copy(update={"base": model}),
        }
    )
    if wrong := [problem for problem in contradictions(found) if problem.where.startswith("evaluation[")]:
        raise ConfigError(*wrong)
    return found


def _chosen(config: Config, wishes: Wishes) -> Sequence[Evaluation]:
    if wishes.source:
        return (_of_source(config, wishes),)
    if not wishes.name:
        if not config.evaluation:
            what = "the configuration names no held-out set"
            raise ConfigError(Problem("evaluation", what, "write an [[evaluation]], or name prompts with --source"))
        return config.evaluation
    if (found := config.evaluation_of(wishes.name)) is None:
        raise ConfigError(Problem("--name", f"no evaluation is called {wishes.name}", _there_is(config.evaluation)))
    return (found,)


def _of_source(config: Config, wishes: Wishes) -> Evaluation:
    """Returns an evaluation of the user's source, with all else as the named evaluation or component has it."""
    sections = config.evaluation + config.mixture
    section = config.section_of(wishes.name) if wishes.name else None
    if wishes.name and section is None:
        what = f"no evaluation and no component is called {wishes.name}"
        raise ConfigError(Problem("--name", what, _there_is(sections)))
    if section is None and not config.uses_environment:
        what = "is scored by [environment], in place of which each component has its own"
        fix = f"say with --name as which evaluation or component these are scored; {_there_is(sections)}"
        raise ConfigError(Problem("--source", what, fix))
    prompts = choose(
        config.model_copy(update={"mixture": ()}) if section is None else config, wishes.source, wishes.name or None
    )
    others = Evaluation.model_fields.keys() & type(section).model_fields.keys() if section else ()
    named = {key: getattr(section, key) for key in others} | {"name": SOURCE}
    return Evaluation(**named | {key: getattr(prompts, key) for key in ("source", "options", "map")})


def _there_is(sections: Sequence[Evaluation | Component]) -> str:
    return f"there is {', '.join(one.name for one in sections) or 'none'}"


def scanned(config: Config, wishes: Wishes) -> list[ScannedSet]:
    """Reads and checks all rows of the sets. `config`: that of `configured`. Raises `PromptError`."""
    found = []
    for evaluation, prompts in zip(config.evaluation, held_out_sets(config), strict=True):
        try:
            source, chunks = scan(config, prompts, lambda _: None)
        except PromptError as error:
            if not wishes.source:
                raise
            here = (replace(one, where=one.where.replace("evaluation[0].source", "--source")) for one in error.problems)
            raise type(error)(*here) from None
        count = sum(chunk.count for chunk in chunks)
        found.append(ScannedSet(evaluation, source, chunks, min(count, wishes.limit or count)))
    return found


def asked_of(config: Config, model: str, digest: str, sets: Sequence[ScannedSet]) -> Asked:
    """Returns what the file of answers says first. `model`: as the user calls it; `digest`: of its weights."""
    return Asked(model, digest, config.run.seed, tuple(one.asked(config) for one in sets))


def prompts_left(sets: Sequence[ScannedSet], done: Collection[tuple[str, int]]) -> Iterator[Prompt]:
    """Yields the prompts that are not `done`, which has sets and indices."""
    for one in sets:
        name = one.evaluation.name
        for index, row in enumerate(one.rows()):
            if (name, index) not in done:
                yield Prompt(_task(name, index, attempt=0), row)


def again(prompt: Prompt) -> Prompt:
    """Returns the prompt for its next attempt."""
    return Prompt(replace(prompt.task, attempt=prompt.task.attempt + 1), prompt.row)


def _task(name: str, index: int, attempt: int) -> Task:
    """Returns a task as a round of evaluation has it. Its id, from which seeds follow, is the same for every model."""
    return Task(
        id=f"{name}/0/{index}",
        set=name,
        epoch=0,
        index=index,
        shard=PromptShard("", index, 1),
        attempt=attempt,
        late=0,
        pv=0,
        min_pv=0,
        lineage=0,
        stream="evaluation",
        entry="",
        version=BASE,
    )
