"""Opens a prompt source by its name. Readers of files and generators are imported when they are needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from echo_queue.config.prompt_map import PromptMap
from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.source import (
    FOLDER,
    GENERATED,
    HUGGING_FACE,
    OWN,
    S3,
    PromptSource,
    is_generated,
    parts_of,
)

if TYPE_CHECKING:
    from echo_queue.connections.storage.endpoint import StoreEndpoint
    from echo_queue.submission.sources.files.file import Rows

CHOICES = (
    f"name a .jsonl, .json, .csv, .tsv or .parquet file, one of them packed as .gz or .zst, a folder of them, "
    f"either of them in a bucket as {S3}BUCKET/KEY, {HUGGING_FACE}NAME:CONFIG:SPLIT, {GENERATED}DATASET, or code of "
    f"your own as module:function"
)


def absolute(name: str) -> str:
    """Returns the source's name as any process of this machine understands it: a file's with its whole path."""
    if name.startswith(tuple(HUGGING_FACE + sign for sign in FOLDER)):
        return HUGGING_FACE + absolute(name.removeprefix(HUGGING_FACE))
    if name.startswith((HUGGING_FACE, S3)) or is_generated(parts_of(name)[0]):
        return name
    path = Path(name).expanduser().absolute()
    return str(path.resolve() if ".." in path.parts else path)


def open_source(name: str, own: str = "", store: "StoreEndpoint | None" = None) -> PromptSource:
    """Returns the source called `name`, as `spell` writes it: a file, a folder, or what code makes.

    `own`: `prompts.source` of this machine's configuration, the only code that is called for a set, since whoever may
    submit may send any name. `store`: the run's own store; other buckets are read with the keys of the environment.
    Raises `PromptError` for any other name, and `ServiceError` for a hub, or a bucket, that is away.
    """
    address, options = parts_of(name)
    if address.startswith(GENERATED):
        from echo_queue.submission.sources.reasoning_gym import ReasoningGymSource

        return ReasoningGymSource(address.removeprefix(GENERATED), options)
    from echo_queue.submission.sources.row_source import RowSource

    if OWN.fullmatch(address):
        from echo_queue.submission.sources.own import OwnRows

        if address != own:
            what = f"{address} is not what this machine's configuration names, and no other code is called"
            raise PromptError(Problem("prompts.source", what, "name it there, or submit a file"))
        rows = OwnRows(address, options)
        return RowSource(rows.name, [rows])
    return RowSource(*_parts(address, store), _map(address, options))


def first_rows(address: str, count: int) -> list[object]:
    """Returns the first rows of a file, a folder or a data set, as they stand there.

    Raises `PromptError` for rows that cannot be read, and for what holds none; `ServiceError` as `open_source`.
    """
    from echo_queue.submission.sources.rows import BadRow, refuse

    _, parts = _parts(address, None)
    part = parts[0]
    found = next(part.slices(0, count), None)
    if found is None:
        raise PromptError(Problem(part.name, "is empty", "write one prompt per line, or per row"))
    refuse((part.location(row), value) for row, value in enumerate(found.values) if isinstance(value, BadRow))
    return list(found.values)


def _parts(name: str, store: "StoreEndpoint | None") -> tuple[str, Sequence["Rows"]]:
    """Returns the address under which every machine finds the same rows, and what holds them. Raises `PromptError`."""
    address = absolute(name)
    if address.startswith(HUGGING_FACE):
        from echo_queue.submission.sources.hugging_face import open_data_set

        data_set = open_data_set(address)
        return data_set.name, [data_set]
    if address.startswith(S3):
        from echo_queue.submission.sources.files.bucket import objects_of

        return address, objects_of(address, store)
    from echo_queue.submission.sources.files.forms import files_of

    files = files_of(Path(address)) if name else None
    if files is None:
        what = f"{name!r} is not a source of prompts" if name else "no source is named"
        raise PromptError(Problem("prompts.source", what, CHOICES))
    return address, files


def _map(address: str, written: Mapping[str, Any]) -> PromptMap:
    try:
        return PromptMap.model_validate(written)
    except ValidationError as error:
        what = f"what stands behind {address} is no map: {error.errors()[0]['msg']}"
        raise PromptError(Problem("prompts.source", what, "write it in [prompts.map]")) from None
