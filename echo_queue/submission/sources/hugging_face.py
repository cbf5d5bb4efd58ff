"""A data set as the package `datasets` loads it: `hf:NAME[@COMMIT][:CONFIG][:SPLIT]`.

NAME is one of the hub's, or a folder that begins with `.`, `/` or `~`: files, or what `save_to_disk` wrote. The
source's own name has the commit of a hub's data set, so every machine reads the same one, now and later. What the
package has in its cache needs no network.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from echo_queue.errors import EchoQueueError, Problem, PromptError, ServiceError
from echo_queue.submission.sources.files.file import Slice
from echo_queue.submission.sources.source import FOLDER, HUGGING_FACE

COMMIT = re.compile(r"[0-9a-f]{40}")
EXAMPLE = f"write {HUGGING_FACE}NAME:CONFIG:SPLIT, as in {HUGGING_FACE}openai/gsm8k:main:train"


class Address(NamedTuple):
    """The parts of an address. `config` is empty where the data set has one alone."""

    data_set: str
    commit: str
    config: str
    split: str

    def __str__(self) -> str:
        commit = f"@{self.commit}" if self.commit else ""
        return f"{HUGGING_FACE}{self.data_set}{commit}:{self.config}:{self.split}"

    @property
    def folder(self) -> Path | None:
        """The folder that holds the data set; None for one of the hub's."""
        return Path(self.data_set).expanduser() if self.data_set.startswith(FOLDER) else None


def address_of(name: str) -> Address:
    """Returns the parts of a source's name. Raises `PromptError`."""
    data_set, config, split, *more = (*name.removeprefix(HUGGING_FACE).split(":"), "", "")
    if not data_set or any(more):
        raise PromptError(Problem("prompts.source", f"{name!r} is no name of a data set", EXAMPLE))
    if data_set.startswith(FOLDER):
        return Address(data_set, "", config, split or "train")
    data_set, _, commit = data_set.partition("@")
    return Address(data_set, commit, config, split or "train")


@dataclass(frozen=True)
class DataSet:
    """A split of a data set, whose places are rows."""

    address: Address
    loaded: Any

    changed = ("the data set has changed", "submit it again")

    @property
    def name(self) -> str:
        return str(self.address)

    def location(self, row: int) -> str:
        return f"{self.name} row {row + 1}"

    def slices(self, start: int, size: int) -> Iterator[Slice]:
        for place in range(start, len(self.loaded), size):
            columns: dict[str, list[object]] = self.loaded[place : place + size]
            yield Slice(place, [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def open_data_set(name: str) -> DataSet:
    """Loads a data set. Raises `PromptError`; `ServiceError` if the hub is away and the cache has no such data set."""
    address = address_of(name)
    try:
        import datasets
    except ImportError:
        fix = "pip install 'echo-queue[datasets]'"
        raise PromptError(Problem(str(address), "needs the datasets package", fix)) from None
    datasets.disable_progress_bars()
    try:
        if address.folder is not None:
            return DataSet(address, _in_folder(datasets, address, address.folder))
        return _of_hub(address) if COMMIT.fullmatch(address.commit) else _newest_of_hub(datasets, address)
    except EchoQueueError:
        raise
    except ConnectionError as error:
        fix = "check the network, or load the data set here once while there is one"
        raise ServiceError(Problem(str(address), _in_one_line(error), fix)) from None
    except Exception as error:  # the package has no error of its own for most of what is wrong
        raise PromptError(Problem(str(address), f"cannot be loaded: {_in_one_line(error)}", EXAMPLE)) from None


def _in_folder(datasets: Any, address: Address, folder: Path) -> Any:
    if not folder.is_dir():
        raise PromptError(Problem(str(address), "there is no such folder on this machine", EXAMPLE))
    if (folder / "state.json").is_file():
        return datasets.load_from_disk(str(folder))
    if not (folder / "dataset_dict.json").is_file():
        return datasets.load_dataset(str(folder), address.config or None, split=address.split)
    saved = datasets.load_from_disk(str(folder))
    if address.split not in saved:
        what = f"has no split {address.split!r}, but {', '.join(map(str, saved))}"
        raise PromptError(Problem(str(address), what, EXAMPLE))
    return saved[address.split]


def _newest_of_hub(datasets: Any, address: Address) -> DataSet:
    """Loads a data set at a branch or tag, and pins it to the commit that this is now."""
    builder = datasets.load_dataset_builder(address.data_set, address.config or None, revision=address.commit or None)
    if not COMMIT.fullmatch(builder.hash or ""):
        raise PromptError(Problem(str(address), "has no commit by which others find it", "name a commit behind @"))
    return _of_hub(address._replace(commit=builder.hash))


@lru_cache(maxsize=4)
def _of_hub(address: Address) -> DataSet:
    """Loads a data set at a commit, which never changes."""
    import datasets

    builder = datasets.load_dataset_builder(address.data_set, address.config or None, revision=address.commit)
    if builder.hash != address.commit:
        what = f"cannot be reached, and the cache here has the commit {builder.hash} alone"
        raise ServiceError(Problem(str(address), what, "check the network"))
    builder.download_and_prepare()
    return DataSet(address, builder.as_dataset(split=address.split))


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
