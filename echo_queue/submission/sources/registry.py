"""Opens a prompt source by its name. Readers of files and generators are imported when they are needed."""

from pathlib import Path

import orjson

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.source import GENERATED, OWN, PromptSource, is_generated


def absolute(name: str) -> str:
    """Returns the source's name as any process of this machine understands it: a file's with its whole path."""
    if is_generated(name):
        return name
    path = Path(name).expanduser().absolute()
    return str(path.resolve() if ".." in path.parts else path)


def open_source(name: str, own: str = "") -> PromptSource:
    """Returns the source called `name`: a file, `reasoning-gym:DATASET {options}` or `module:function {options}`.

    `own`: `prompts.source` of this machine's configuration, the only code that is called for a set, since whoever may
    submit may send any name. Raises `PromptError` for any other name.
    """
    if name.startswith(GENERATED):
        from echo_queue.submission.sources.reasoning_gym import ReasoningGymSource

        dataset, _, options = name.removeprefix(GENERATED).partition(" ")
        return ReasoningGymSource(dataset, orjson.loads(options or "{}"))
    if match := OWN.fullmatch(name):
        from echo_queue.submission.sources.own import OwnSource

        if match["reference"] != own:
            what = f"{match['reference']} is not what this machine's configuration names, and no other code is called"
            raise PromptError(Problem("prompts.source", what, "name it there, or submit a file"))
        return OwnSource(own, orjson.loads(match["options"] or "{}"))
    path = Path(absolute(name))
    match path.suffix:
        case ".jsonl":
            from echo_queue.submission.sources.jsonl import JsonLinesSource

            return JsonLinesSource(path)
        case ".parquet":
            from echo_queue.submission.sources.parquet import ParquetSource

            return ParquetSource(path)
    what = f"{name!r} is not a source of prompts" if name else "no source is named"
    fix = f"name a .jsonl or .parquet file, {GENERATED}DATASET, or code of your own as module:function"
    raise PromptError(Problem("prompts.source", what, fix))
