"""Opens a prompt source by its name. Readers of files and generators are imported when they are needed."""

from pathlib import Path

import orjson

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.source import GENERATED, POKER, PromptSource


def absolute(name: str) -> str:
    """Returns the source's name as any process of this machine understands it: a file's with its whole path."""
    if name.startswith((GENERATED, POKER)):
        return name
    path = Path(name).expanduser().absolute()
    return str(path.resolve() if ".." in path.parts else path)


def open_source(name: str) -> PromptSource:
    """Returns the source called `name`: a file, `reasoning-gym:DATASET {options}` or `poker:GAME {options}`.

    Raises `PromptError` for any other name.
    """
    if name.startswith(GENERATED):
        from echo_queue.submission.sources.reasoning_gym import ReasoningGymSource

        dataset, _, options = name.removeprefix(GENERATED).partition(" ")
        return ReasoningGymSource(dataset, orjson.loads(options or "{}"))
    if name.startswith(POKER):
        from echo_queue.submission.sources.poker.deals import PokerSource

        game, _, options = name.removeprefix(POKER).partition(" ")
        return PokerSource(game, orjson.loads(options or "{}"))
    path = Path(absolute(name))
    match path.suffix:
        case ".jsonl":
            from echo_queue.submission.sources.jsonl import JsonLinesSource

            return JsonLinesSource(path)
        case ".parquet":
            from echo_queue.submission.sources.parquet import ParquetSource

            return ParquetSource(path)
    what = f"{name!r} is not a source of prompts" if name else "no source is named"
    raise PromptError(
        Problem("prompts.source", what, f"name a .jsonl or .parquet file, {GENERATED}DATASET or {POKER}GAME")
    )
