"""The checkpoints that a server loads: files in a folder that the server sees under the same path."""

import secrets
import shutil
import socket
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from echo_queue.errors import ConfigError, Problem

FILE = "model.safetensors"


class CheckpointFiles:
    """The folder of one worker. `parameters`: the model's, where tied names share one object; a file has the first name
    of each."""

    def __init__(self, weights_dir: Path, url: str, parameters: Mapping[str, Tensor]) -> None:
        """Takes the part of `weights_dir` that belongs to this machine and that server, which serves one worker at a
        time: checkpoints of earlier workers are removed."""
        server = urlsplit(url)
        own = (weights_dir / f"{socket.gethostname()}-{server.hostname}-{server.port or server.scheme}").absolute()
        shutil.rmtree(own, ignore_errors=True)
        self._folder = own / secrets.token_hex(4)
        first: dict[int, str] = {}
        self.owner = {name: first.setdefault(id(one), name) for name, one in parameters.items()}
        """Maps each name to the name that the file has for its tensor."""
        self._numbers = count(1)

    def put(self, tensors: Mapping[str, Tensor]) -> Path:
        """Writes a new checkpoint and returns its folder. Raises `ConfigError` if it cannot be written."""
        folder = self._folder / str(next(self._numbers))
        owned = {self.owner[name]: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            folder.mkdir(parents=True)
            save_file(owned, folder / FILE, metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            what = f"{folder} cannot be written: {error}"
            fix = "name a writable folder with room, which worker and server see under the same path"
            raise ConfigError(Problem("rollout.http.weights_dir", what, fix)) from None
        return folder

    def read(self, folder: Path, name: str) -> Tensor:
        """Reads a tensor by any of its names. Raises `KeyError` for an unknown name."""
        owner = self.owner[name]
        with safe_open(folder / FILE, "pt") as file:
            tensor: Tensor = file.get_tensor(owner)
        return tensor

    def keep_only(self, folder: Path) -> None:
        """Removes all checkpoints but `folder`."""
        for other in self._folder.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)

    def remove(self) -> None:
        """Removes all checkpoints."""
        shutil.rmtree(self._folder, ignore_errors=True)
