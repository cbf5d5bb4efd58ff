"""A reasoning-gym dataset: item i is generated from (dataset, options, i), so any machine can make any range of items.

A row has the columns `dataset`, `options`, `index`, and `entry` with its question, answer and metadata as JSON. JSON
turns tuples into lists and keys into text, and some of the datasets' own scorers tell these apart. So a scorer uses
`original(columns)`, which generates the entry again.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, Protocol

import orjson
from blake3 import blake3

from echo_queue.errors import Problem, PromptError
from echo_queue.launch import collection
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.rows import BadRow, normalise
from echo_queue.submission.sources.source import GENERATED, Scanned, spell

Entry = dict[str, Any]
PLOTTING = (
    "matplotlib",
    "matplotlib.pyplot",
    "matplotlib.animation",
    "matplotlib.collections",
    "mpl_toolkits",
    "mpl_toolkits.mplot3d",
)
"""The modules that cellpylib, which two datasets use, imports for plots that nobody asks of it here."""


class LeftOut(ModuleType):
    """An empty module, of which one class is imported by name."""

    Axes3D = None


class Dataset(Protocol):
    """The part of reasoning-gym's `ProceduralDataset` that is used here."""

    size: int

    def __getitem__(self, index: int) -> Entry: ...

    def score_answer(self, answer: str | None, entry: Entry) -> float: ...


@dataclass(frozen=True)
class ReasoningGymSource:
    """The items of one dataset. `options` are `size`, `seed` and the dataset's own settings."""

    dataset: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.options.get("seed"), int):
            what = "a generated set needs a seed: without one each process would draw other items"
            fix = f"add seed = 1, or another whole number; in a command: '{GENERATED}{self.dataset} {{\"seed\": 1}}'"
            raise PromptError(Problem("prompts.options", what, fix))

    @property
    def name(self) -> str:
        return spell(GENERATED + self.dataset, self.options)

    def location(self, chunk: Chunk, position: int) -> str:
        return self._item(chunk.first + position)

    def _item(self, index: int) -> str:
        return f"{GENERATED}{self.dataset} item {index}"

    def scan(self, size: int) -> Iterator[Scanned]:
        total = self._items.size
        self._row(0)
        for number, first in enumerate(range(0, total, size)):
            count = min(size, total - first)
            yield Chunk(number, first, count, self._digest(first, count)), ()

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        if chunk.digest != self._digest(chunk.first, chunk.count):
            what = f"this machine's reasoning-gym ({_installed()}) is not the submitter's; its items may differ"
            raise PromptError(Problem(self.name, what, "install the same version on both, then submit again"))
        return [self._row(index) for index in range(chunk.first, chunk.first + chunk.count)]

    def _row(self, index: int) -> PromptRow:
        try:
            entry = self._items[index]
        except Exception as error:
            what = f"the dataset raised {type(error).__name__}: {error}"
            raise PromptError(Problem(self._item(index), what, "check prompts.options")) from error
        shown = {key: entry[key] for key in ("question", "answer", "metadata")}
        columns = {"dataset": self.dataset, "options": dict(self.options), "index": index, "entry": shown}
        try:
            return normalise({"prompt": entry["question"], **columns})
        except BadRow as bad:
            fix = "choose other prompts.options, or another dataset"
            raise PromptError(Problem(self._item(index), bad.what, fix)) from None

    def _digest(self, first: int, count: int) -> str:
        """Returns the digest of everything that decides what the items are."""
        what = [_installed(), self.dataset, self.options, first, count]
        return blake3(orjson.dumps(what, option=orjson.OPT_SORT_KEYS)).hexdigest()

    @cached_property
    def _items(self) -> Dataset:
        return _dataset(self.dataset, orjson.dumps(self.options))


def original(columns: Mapping[str, Any]) -> tuple[Dataset, Entry]:
    """Returns the dataset and the entry of a generated row, in the form that `score_answer` expects."""
    dataset = _dataset(columns["dataset"], orjson.dumps(columns["options"]))
    return dataset, dataset[columns["index"]]


def load_package() -> ModuleType:
    """Imports reasoning-gym without matplotlib, which would double the second that it takes. Raises `ImportError`.

    Python's compiler warns of cellpylib's source when it meets it first, which is no concern of this project's users.
    """
    left_out = {} if PLOTTING[0] in sys.modules else {name: LeftOut(name) for name in PLOTTING}
    sys.modules.update(left_out)
    try:
        with collection.paused(), warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return import_module("reasoning_gym")
    finally:
        for name in left_out:
            del sys.modules[name]  # who plots imports the true one


@cache
def _dataset(name: str, options: bytes) -> Dataset:
    try:
        package = load_package()
    except ImportError:
        fix = "pip install 'echo-queue[environments]'"
        raise PromptError(Problem(GENERATED + name, "needs the reasoning-gym package", fix)) from None
    if name not in package.factory.DATASETS:
        known = ", ".join(sorted(package.factory.DATASETS))
        raise PromptError(
            Problem("prompts.source", f"reasoning-gym has no dataset {name!r}", f"choose one of: {known}")
        )
    try:
        dataset: Dataset = package.create_dataset(name, **orjson.loads(options))
    except Exception as error:
        what = f"reasoning-gym's {name} refuses them: {type(error).__name__}: {error}"
        raise PromptError(Problem("prompts.options", what, "see the dataset's own settings")) from error
    return dataset


def _installed() -> str:
    try:
        return version("reasoning_gym")
    except PackageNotFoundError:
        return "none"
