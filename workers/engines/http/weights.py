"""What the server has: the checkpoint that it was told to load, and how far that can be checked."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from echo_queue.errors import Problem
from echo_queue.records import Version
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import matches
from workers.engines.http.checksums import Checksums
from workers.engines.http.files import Files
from workers.engines.http.loader import Loader
from workers.engines.http.server import WHERE, Refused, Server

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where the server is and where its weights are put. `streams`: samples that it generates at once."""

    url: str
    key: str | None
    weights_dir: Path
    deadline_s: float
    checksums: bool
    streams: int


class Weights:
    """`parameters`: shapes and types by name; tied names share one object."""

    def __init__(self, server: Server, place: Place, state: Mapping[str, Tensor]) -> None:
        """`state`: of a model such as the server's, with its variables."""
        self._server = server
        self._loader = Loader(server)
        self._files = Files(place.weights_dir, place.url, state)
        self._folder = Path()
        self._asks = place.checksums
        self._reported: dict[str, str] = {}
        self._checksums = Checksums({}, self._files.owner, self.read)
        shapes = {id(one): one.detach().to("meta") for one in state.values()}
        self.parameters = {name: shapes[id(one)] for name, one in state.items()}

    @property
    def label(self) -> str:
        """Empty after a load that failed."""
        return self._loader.label

    @property
    def served(self) -> bool:
        """The server still has what it was given last. Raises `Away`, and `Refused` if it has somebody else's."""
        return self._loader.holds()

    def put(self, tensors: Mapping[str, Tensor]) -> Path:
        """A checkpoint that can be loaded; the server does not know of it yet. Raises `ConfigError`."""
        return self._files.put(tensors)

    def give(self, version: Version, folder: Path) -> None:
        """Raises `Away` or `Refused`: the server may then have anything; what it had before can be given `again`."""
        self._loader.give(version, folder)
        self._reported = self._server.checksums() if self._asks else {}
        self._folder = folder
        self._files.keep_only(folder)

    def again(self, version: Version) -> None:
        """What it was given last, to a server that has something else. Raises `Refused` if it makes something else of
        it than the server before."""
        before = self._reported
        self.give(version, self._folder)
        if self._reported != before:
            what = f"{self._server.url} was started again, and makes other parameters of the same weights"
            raise Refused(Problem(WHERE, what, "start it as it was started before"))

    def learn(self) -> None:
        """Which parameters the server's checksums tell, while it surely has what it was given."""
        self._checksums = Checksums(self._reported, self._files.owner, self.read)
        told, all_names = len(self._checksums.coverage), len(set(self._files.owner.values()))
        log.info("%d of %d tensors can be checked by the server's checksums", told, all_names)

    def read(self, name: str) -> Tensor:
        """From the checkpoint that the server was given last. Raises `KeyError`."""
        return self._files.read(self._folder, name)

    def holds(self, info: TensorInfo) -> bool:
        """The checkpoint that the server has loaded is right, and so is what it made of it, where that can be told."""
        right = matches(self.read(info.name), info)
        return right and self.served and self._checksums.agree(self._reported, info.name)

    def close(self) -> None:
        self._files.remove()
