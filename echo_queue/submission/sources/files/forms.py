"""The forms of files by the ends of their names, and the files of a folder."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.files.delimited import DELIMITERS, Delimited
from echo_queue.submission.sources.files.document import JsonDocument
from echo_queue.submission.sources.files.file import UNPACK, Rows
from echo_queue.submission.sources.files.lines import JsonLines
from echo_queue.submission.sources.files.parquet import Parquet
from echo_queue.submission.sources.source import unreadable

FORMS: dict[str, Callable[[Path, str], Rows]] = {
    ".jsonl": JsonLines,
    ".json": JsonDocument,
    **dict.fromkeys(DELIMITERS, Delimited),
    ".parquet": Parquet,
}


def form_of(path: Path) -> str:
    """Returns the end of a file's name that tells its form, without that of its packing; empty if it tells none.

    Raises `PromptError` for packed Parquet, whose columns are packed already.
    """
    packed = path.suffix.lower() in UNPACK
    suffix = Path(path.stem if packed else path.name).suffix.lower()
    if packed and suffix == ".parquet":
        raise PromptError(Problem(str(path), "is a packed Parquet file, which nobody can read in parts", "unpack it"))
    return suffix if suffix in FORMS else ""


def file_of(path: Path, name: str) -> Rows | None:
    """Returns the reader of a file that a person knows as `name`, or None if its name tells no form."""
    form = form_of(path)
    return FORMS[form](path, name) if form else None


def files_of(path: Path) -> Sequence[Rows] | None:
    """Returns the file, or the files of a folder in the order of their names; None if the name tells no form.

    Files of a folder whose names tell no form, and hidden ones, are no prompts. Raises `PromptError` for a folder
    without prompts, or with several forms of them.
    """
    if file := file_of(path, str(path)):
        return [file]
    if not path.is_dir():
        return None
    try:
        found = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
    except OSError as error:
        raise unreadable(str(path), error) from None
    forms = {form: one.name for one in reversed(found) if (form := form_of(one))}
    if not forms:
        what = f"has no file of prompts on {socket.gethostname()}"
        raise PromptError(Problem(str(path), what, f"put files into it whose names end in {', '.join(FORMS)}"))
    if len(forms) > 1:
        what = f"has files of several forms: {', '.join(sorted(forms.values()))}"
        raise PromptError(Problem(str(path), what, "leave files of one form in it, or name one file"))
    return [file for one in found if (file := file_of(one, str(one)))]
