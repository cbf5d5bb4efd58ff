"""Finds what would end a run on this machine, before any process starts: model, packages, environment and prompts.

It imports neither torch nor the user's reward, which may take long: a function is looked up in the text of its module.
Only code that makes the prompts is called, for the first of them. What cannot be known that way is left to the roles,
and to the first prompts (`queue/dead_causes.py`).
"""

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from echo_queue.config import Config, Environment, module_search
from echo_queue.config.function_text import definition, missing_import, unwritten, wrong_returns
from echo_queue.config.model import NAMED
from echo_queue.config.rewards import TABLES, named_code
from echo_queue.errors import ConfigError, EchoQueueError, Problem, UnfitPromptError
from echo_queue.file_lock import is_locked
from echo_queue.fleet.invitation import machine
from echo_queue.launch.supervisor import LOCK
from echo_queue.models.config_file import find
from echo_queue.models.hub import reachable
from echo_queue.models.weight_files import INDEX, SINGLE

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role
    from echo_queue.records import PromptRow

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")
"""Any of these files makes a folder one with a tokenizer."""
HUB_MODEL = '"Qwen/Qwen3-0.6B"'
ENVIRONMENT_PACKAGES = {
    "reasoning-gym": ("reasoning_gym", "environments"),
    "math": ("math_verify", "environments"),
    "verifiers": ("verifiers", "verifiers"),
}
"""Kind of environment → the package that it needs, and the extra that brings it."""


GENERATED = {"reasoning-gym": ("dataset", "options", "index")}
"""Kind of environment that scores the rows of its own sources alone → the columns by which it knows them."""


class For(StrEnum):
    """The part of the run for which a machine is checked."""

    run = "run"
    worker = "worker"
    learner = "learner"
    submitter = "submitter"


ROLES: dict[For, tuple["Role", ...]] = {
    For.worker: ("worker",),
    For.learner: ("learner",),
    For.submitter: ("submitter", "celery"),
}
"""The roles as which such a machine uses the services; a run uses them as every role."""


def problems(config: Config, role: For = For.run) -> Iterator[Problem]:
    """Yields everything that would end `role` here and can be known at once."""
    if role is not For.worker:  # the learner's folder reaches workers through the store
        yield from _model(config, role)
    for name, file in module_search.displaced():
        what = f"{file} would be imported in place of Echo Queue's own {name}"
        yield Problem("PYTHONPATH", what, "take that folder out: a module beside which you start is found without it")
    if role is not For.submitter:
        yield from _packages(config, role)
    if role in (For.run, For.learner) and config.learner.device == "cuda" and not machine.torch_takes_gpus():
        what = 'is "cuda", but torch was built without CUDA here'
        yield Problem("learner.device", what, 'install a CUDA build of torch, or write "auto" or "cpu"')
    if role in (For.run, For.worker):
        for section, environment in _environments(config):
            yield from _code(section, environment)
        environments = [environment for _, environment in _environments(config)]
        if any(reward.judge for one in environments for reward in one.reward_functions.values()):
            yield from _key_of_judges()
    if role is For.run:
        yield from _ports(config)
    if role in (For.run, For.learner):
        loss = definition("learner.loss", config.learner.loss)
        if isinstance(loss, Problem):
            yield loss
    if role in (For.run, For.submitter):
        yield from _prompts(config, role)


def _who_needs(environment: Environment) -> dict[str, str]:
    """Returns who may need columns: the key that names it → its name in `NeededColumns.each`."""
    judges = {name for name, reward in environment.reward_functions.items() if reward.judge}
    return named_code(environment) | {f"{TABLES}.{name}.judge.prompt": f"the judge {name}" for name in sorted(judges)}


def _code(section: str, environment: Environment) -> Iterator[Problem]:
    """Looks up the user's own functions or classes, which an environment names, in the text of their modules."""
    for key, reference in named_code(environment).items() if environment.kind in NAMED else ():
        where = section + key.removeprefix("environment")
        function = definition(where, reference)
        if isinstance(function, Problem):
            yield function
            continue
        if lacking := missing_import(where, reference):
            yield lacking
        if environment.kind != "function":
            continue
        if isinstance(function, ast.ClassDef):
            what = f"{reference} is a class, which a call makes an instance of, and no rewards"
            yield Problem(where, what, "name a function, or an instance that can be called")
        elif line := unwritten(function):
            what = f"{reference} is not written yet: all that it does is to raise NotImplementedError (line {line})"
            yield Problem(where, what, "write it: it returns a list with one number per completion")
        elif wrong := wrong_returns(function):
            fix = "return a list with one number per completion"
            yield Problem(where, f"{reference} {wrong}, and no list of rewards", fix)


def _key_of_judges() -> Iterator[Problem]:
    from echo_queue.connections.secrets import judge_key

    try:
        judge_key()
    except EchoQueueError as error:
        yield from error.problems


def warnings(config: Config, role: For = For.run) -> Iterator[Problem]:
    """Warns of modules beside the user's own that no process imports, since a package has their name, and of prompts
    that are held out and trained."""
    functions = [reference for _, one in _environments(config) for reference in named_code(one).values()]
    own = next(filter(None, functions), "") if role in (For.run, For.worker) else ""
    own = own or (config.learner.loss if role in (For.run, For.learner) else "")
    if own and (names := [file.name for file in module_search.hidden()]):
        what = f"{', '.join(names)} in this folder cannot be imported: installed packages have these names"
        yield Problem(own, what, "rename what your function imports; the rest may stay")
    if role in (For.run, For.submitter):
        from echo_queue.submission.overlap import trained_too

        yield from trained_too(config)


def _environments(config: Config) -> Iterator[tuple[str, Environment]]:
    """Yields the run's environment, if any prompts have it, and the own one of each component and each evaluation that
    has one, with its section's path."""
    if config.uses_environment:
        yield "environment", config.environment
    for number, component in enumerate(config.mixture):
        if component.environment is not None:
            yield f"mixture[{number}].environment", component.environment
    for number, evaluation in enumerate(config.evaluation):
        if evaluation.environment is not None:
            yield f"evaluation[{number}].environment", evaluation.environment


def _ports(config: Config) -> Iterator[Problem]:
    """Checks the ports on which a run's workers will serve their peers. A run that goes on has them already."""
    with suppress(OSError):
        if is_locked(config.run.dir / LOCK):
            return
    yield from machine.peer_port_problems(config, config.rollout.workers)


def _prompts(config: Config, role: For) -> Iterator[Problem]:
    """Checks the first prompts; the others are checked when they are submitted.

    A run that has made updates may need its source no more; whether it does is seen when it submits.
    """
    from echo_queue.submission.configured_sets import chosen, in_section
    from echo_queue.submission.declaration import check_first_rows

    try:
        sets = chosen(config)
    except ConfigError as error:
        yield from error.problems
        return
    for prompts in sets:
        try:
            rows = check_first_rows(config, prompts)
        except UnfitPromptError as error:
            yield from error.problems
        except EchoQueueError as error:
            yield from () if (config.run.dir / "metrics.jsonl").exists() else error.problems
        else:
            found = _columns(config.environment_of(prompts.set), role, _shared(rows)) if rows else ()
            yield from (in_section(config, prompts.set, problem) for problem in found)


def _model(config: Config, role: For) -> Iterator[Problem]:
    """Checks the model's folder. Whether the hub has a model is not asked here, which would need the network.

    A name without an owner is one of the hub's oldest models, none of which is trained, unless the cache has it.
    """
    model, base = config.model, config.model.base
    folder = Path(base).expanduser()
    if not reachable(folder / "config.json"):
        what = f"this user may not enter {base}, or a folder above it"
        yield Problem("model.base", what, "let the user of this role read and enter them (chmod)")
        return
    if model.revision != "main" and (base == "init" or folder.is_dir()):
        yield Problem("model.revision", f"is set, but {base} is no hub model", "remove it, or name a hub model")
    if base == "init":
        if role is not For.submitter:
            from echo_queue.submission.configured_sets import unmade

            yield from unmade(config)
        return
    if not (folder.exists() or _is_path(base)):
        if "/" not in base.rstrip("/") and role is not For.submitter and find(config) is None:
            what = f"there is no folder {base} (looked in {Path.cwd()}), and the hub's cache here has no such model"
            yield Problem("model.base", what, f"name a model's folder, or a hub model as OWNER/NAME: {HUB_MODEL}")
        return
    if not folder.is_dir():
        what = f"{base} is no folder on this machine"
        yield Problem("model.base", what, f"name a Hugging Face folder, or a hub model as OWNER/NAME: {HUB_MODEL}")
        return
    if not (folder / "config.json").is_file():
        yield Problem("model.base", f"{base} has no config.json", "name the folder of a Hugging Face model")
        return
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield Problem("model.base", f"{base} has no tokenizer", "copy the tokenizer's files into the folder")
    if role is not For.submitter and not any((folder / name).is_file() for name in (SINGLE, INDEX)):
        what = f"{base} has no weights ({SINGLE} or {INDEX})"
        yield Problem("model.base", what, "copy them into the folder, or save the model again as safetensors")


def _is_path(base: str) -> bool:
    """Returns whether this can only be a folder: a hub name is `name` or `owner/name`."""
    return base.startswith((".", "/", "~")) or base.count("/") > 1


def _packages(config: Config, role: For) -> Iterator[Problem]:
    from echo_queue.reporting import results

    own = "worker,learner" if role is For.run else role
    for package, where, extra in (
        ("torch", role, own),
        ("transformers", role, own),
        *(_of_worker(config) if role is not For.learner else ()),
    ):
        if find_spec(package) is None:
            what = f"needs the package {package}, which is not installed"
            yield Problem(where, what, f"pip install 'echo-queue[{extra}]'")
    if role is not For.worker and (missing := results.problem(config)):
        yield missing


def _of_worker(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yields (package, the key that needs it, the extra that brings it)."""
    for section, environment in _environments(config):
        if environment.kind in ENVIRONMENT_PACKAGES:
            package, extra = ENVIRONMENT_PACKAGES[environment.kind]
            yield package, f"{section}.kind", extra
    if config.rollout.engine == "vllm":
        yield "vllm", "rollout.engine", "vllm"


def _shared(rows: "Sequence[PromptRow]") -> list[str]:
    """Returns the columns that every row has, besides the prompt."""
    return sorted(set.intersection(*(set(row.columns) for row in rows)))


def _columns(environment: Environment, role: For, columns: Sequence[str]) -> Iterator[Problem]:
    """Compares what the reward needs with the columns of the prompts."""
    from echo_queue.submission.needed_columns import TAKEN, arguments_of, needed_columns

    has = f"the prompts have {', '.join(columns) or 'no column but the prompt'}"
    needed = needed_columns(environment)
    if needed.any_of and not set(needed.any_of) & set(columns):
        what = f"math compares with a column {' or '.join(needed.any_of)}; {has}"
        yield Problem("environment.kind", what, "rename the column that holds the answer")
    if taken := needed.taken(columns):
        what = f"the prompts have a column {', '.join(taken)}, {TAKEN}"
        yield Problem("prompts.source", what, "rename that column")
    kind = environment.kind
    if missing := [name for name in GENERATED.get(kind, ()) if name not in columns]:
        what = f'is "{kind}", which scores the prompts of its own sets alone (columns {", ".join(missing)}); {has}'
        fix = 'for prompts of your own write kind = "function", with a reward function, "math" or another one'
        yield Problem("environment.kind", what, f"{fix}; or name {kind}:… as prompts.source")
    for where, reference in _who_needs(environment).items():
        if missing := [name for name, by in needed.each.items() if by == reference and name not in columns]:
            what = f"{reference} needs the columns {', '.join(missing)}; {has}"
            yield Problem(where, what, "rename the columns of the prompts, or what asks for them")
        arguments = arguments_of(where, reference) if needed.keywords and role is For.run else None
        if arguments and (refused := arguments.refused(columns)):  # elsewhere the workers have the function
            what = f"{reference} does not take {', '.join(refused)}, which every call passes"
            yield Problem(where, what, "add **columns to its arguments")
