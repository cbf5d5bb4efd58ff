"""The forms of files by the ends of their names, and the files of a folder, wherever they are."""

import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.files.delimited import DELIMITERS, Delimited
from echo_queue.submission.sources.files.document import JsonDocument
from echo_queue.submission.sources.files.file import UNPACK, Rows
from echo_queue.submission.sources.files.lines import JsonLines
from echo_queue.submission.sources.files.parquet import Parquet
from echo_queue.submission.sources.files.stored import LocalFile, Stored
from echo_queue.submission.sources.source import unreadable

FORMS: dict[str, Callable[[Stored], Rows]] = {
    ".jsonl": JsonLines,
    ".json": JsonDocument,
    **dict.fromkeys(DELIMITERS, Delimited),
    ".parquet": Parquet,
}


def form_of(name: str) -> str:
    """Returns the end of a file's name that tells its form, without that of its packing; empty if it tells none.

    Raises `PromptError` for packed Parquet, whose columns are packed already.
    """
    path = PurePosixPath(name)
    packed = path.suffix.lower() in UNPACK
    suffix = PurePosixPath(path.stem if packed else path.name).suffix.lower()
    if packed and suffix == ".parquet":
        raise PromptError(Problem(name, "is a packed Parquet file, which nobody can read in parts", "unpack it"))
    return suffix if suffix in FORMS else ""


def file_of(stored: Stored) -> Rows:
    """Returns the reader of a file whose name tells its form."""
    return FORMS[form_of(stored.name)](stored)


def files_of(path: Path) -> Sequence[Rows] | None:
    """Returns the file, or the files of a folder of this machine; None if it is no folder and its name tells no form.

    Raises what `folder_of` raises.
    """
    if form_of(str(path)):
        return [file_of(LocalFile(path))]
    if not path.is_dir():
        return None
    try:
        found = [LocalFile(one) for one in path.iterdir() if one.is_file()]
    except OSError as error:
        raise unreadable(str(path), error) from None
    return folder_of(str(path), found, f"has no file of prompts on {socket.gethostname()}")


def folder_of(name: str, found: Iterable[Stored], empty: str) -> Sequence[Rows]:
    """Returns the readers of the files of a folder, in the order of their names.

    Files whose names tell no form, and hidden ones, are no prompts. `empty`: what is wrong if there is none but these.
    Raises `PromptError` for a folder without prompts, or with several forms of them.
    """
    files = sorted((one for one in found if not _base(one).startswith(".") and form_of(one.name)), key=_base)
    forms = {form_of(one.name): _base(one) for one in reversed(files)}
    if not forms:
        raise PromptError(Problem(name, empty, f"put files into it whose names end in {', '.join(FORMS)}"))
    if len(forms) > 1:
        what = f"has files of several forms: {', '.join(sorted(forms.values()))}"
        raise PromptError(Problem(name, what, "leave files of one form in it, or name one file"))
    return [file_of(one) for one in files]


def _base(stored: Stored) -> str:
    return stored.name.rpartition("/")[2]
