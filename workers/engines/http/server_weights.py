"""The weights of a server: writes the checkpoint that it loads, and checks that it has loaded it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from echo_queue.errors import Problem
from echo_queue.records import Version
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import matches
from workers.engines.http.checkpoint_files import CheckpointFiles
from workers.engines.http.checksums import Checksums
from workers.engines.http.server import WHERE, Server, ServerRefused
from workers.engines.http.weight_loader import WeightLoader

log = logging.getLogger(__name__)


class ServerAccess(NamedTuple):
    """The server's address, and the folder for its weights. `streams`: samples that it generates at once.

    `checksums`: whether the server's checksums are checked.
    """

    url: str
    key: str | None
    weights_dir: Path
    deadline_s: float
    checksums: bool
    streams: int


class ServerWeights:
    """The weights of one server. `parameters`: shapes and types by name; tied names share one object."""

    def __init__(self, server: Server, access: ServerAccess, state: Mapping[str, Tensor]) -> None:
        """`state`: the state dict, with its variables, of the model that the server was started with."""
        self._server = server
        self._loader = WeightLoader(server)
        self._files = CheckpointFiles(access.weights_dir, access.url, state)
        self._folder = Path()
        self._ask_checksums = access.checksums
        self._reported: dict[str, str] = {}
        self._checksums = Checksums({}, self._files.owner, self.read)
        shapes = {id(one): one.detach().to("meta") for one in state.values()}
        self.parameters = {name: shapes[id(one)] for name, one in state.items()}

    @property
    def label(self) -> str:
        """The label of the weights given last; empty after a load that failed."""
        return self._loader.label

    @property
    def served(self) -> bool:
        """True if the server still has the weights given last.

        Raises `ServerAway`, or `ServerRefused` if it has those of another client.
        """
        return self._loader.holds()

    def put(self, tensors: Mapping[str, Tensor]) -> Path:
        """Writes a checkpoint, of which the server does not know yet; returns its folder. Raises `ConfigError`."""
        return self._files.put(tensors)

    def give(self, version: Version, folder: Path) -> None:
        """Makes the server load `folder`. After `ServerAway` or `ServerRefused` the server's weights are unknown; those
        before can be given `again`."""
        self._loader.give(version, folder)
        self._reported = self._server.checksums() if self._ask_checksums else {}
        self._folder = folder
        self._files.keep_only(folder)

    def again(self, version: Version) -> None:
        """Gives a server the weights given last again. Raises `ServerRefused` if it makes other parameters of them than
        before."""
        before = self._reported
        self.give(version, self._folder)
        if self._reported != before:
            what = f"{self._server.url} was started again, and makes other parameters of the same weights"
            raise ServerRefused(Problem(WHERE, what, "start it as it was started before"))

    def learn(self) -> None:
        """Finds the parameters that can be checked. Call it while the server surely has the weights given last."""
        self._checksums = Checksums(self._reported, self._files.owner, self.read)
        checked, all_names = len(self._checksums.coverage), len(set(self._files.owner.values()))
        log.info("%d of %d tensors can be checked by the server's checksums", checked, all_names)

    def read(self, name: str) -> Tensor:
        """Reads a tensor of the checkpoint given last. Raises `KeyError`."""
        return self._files.read(self._folder, name)

    def holds(self, info: TensorInfo) -> bool:
        """Returns whether the checkpoint that the server loaded is right, and its parameters as far as they can be
        checked."""
        right = matches(self.read(info.name), info)
        return right and self.served and self._checksums.agree(self._reported, info.name)

    def close(self) -> None:
        self._files.remove()
