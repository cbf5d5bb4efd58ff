"""The folder of an invited machine: its configuration, its secrets, and what is needed to claim the grant again.

Everything in it is for its owner alone (0700, 0600).
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echo_queue.atomic_file import write_atomically
from echo_queue.config.toml_text import written
from echo_queue.errors import Problem, ServiceError
from echo_queue.fleet.invitation.token import Grant, SignedToken

CONFIG, AUTHORITY = "run.toml", "authority.pem"
PASSWORD, ACCESS_KEY, SECRET_KEY = "redis.password", "store.access_key", "store.secret_key"
VARIABLES = {
    PASSWORD: "ECHO_QUEUE_WORKER_REDIS_PASSWORD",
    ACCESS_KEY: "ECHO_QUEUE_WORKER_STORE_ACCESS_KEY",
    SECRET_KEY: "ECHO_QUEUE_WORKER_STORE_SECRET_KEY",
}
"""The file of each secret → the variable that holds it, or with `_FILE` its path."""


class Home:
    """The folder `path`, of one invitation. Every method raises `ServiceError` for a folder that cannot be used."""

    def __init__(self, path: Path, id: str) -> None:
        self.path = path.absolute()
        self._id = id

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    def open(self) -> None:
        """Makes the folder. Raises `ServiceError` if it is that of another invitation."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            others = [path.stem for path in self.path.glob("*.nonce") if path.stem != self._id]
        except OSError as error:
            what, fix = f"cannot be used: {error.strerror}", "name another folder (--dir)"
            raise ServiceError(Problem(str(self.path), what, fix)) from None
        if others:
            what = f"is the folder of invitation {others[0]}"
            raise ServiceError(Problem(str(self.path), what, "name another folder (--dir), or remove this one"))

    def nonce(self) -> str:
        """Returns the nonce of this machine's claim, which is made the first time."""
        path = self.path / f"{self._id}.nonce"
        if not path.exists():
            self._write(path.name, secrets.token_hex(32))
        return path.read_text(encoding="ascii")

    def grant(self, token: SignedToken) -> Grant | None:
        """Returns the grant that was claimed before, if it was. Raises `InvitationError` for one that was changed."""
        path = self.path / f"{self._id}.grant"
        return token.open_grant(path.read_bytes()) if path.exists() else None

    def keep_settings(self, settings: Mapping[str, Any], authority: str) -> None:
        """Writes the configuration, and the certificates by which Redis is known."""
        if authority:
            self._write(AUTHORITY, authority)
        self._write(CONFIG, written(settings))

    def keep_grant(self, envelope: bytes, grant: Grant) -> None:
        """Writes the secrets and, last of all, the grant: whoever finds it finds everything."""
        found = {PASSWORD: grant.password, ACCESS_KEY: grant.access_key, SECRET_KEY: grant.secret_key}
        for name, secret in found.items():
            if secret is not None:
                self._write(name, secret)
        self._write(f"{self._id}.grant", envelope.decode())

    def environment(self) -> dict[str, str]:
        """Returns the variables that say where the secrets are."""
        return {
            f"{variable}_FILE": str(self.path / name)
            for name, variable in VARIABLES.items()
            if (self.path / name).exists()
        }

    def apply_environment(self) -> None:
        """Gives this process, and whatever it becomes, the secrets of this folder and no others."""
        for variable in VARIABLES.values():
            os.environ.pop(variable, None)
            os.environ.pop(f"{variable}_FILE", None)
        os.environ.update(self.environment())

    def _write(self, name: str, text: str) -> None:
        try:
            write_atomically(self.path / name, text.encode(), "invitation", mode=0o600)
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise ServiceError(Problem(str(self.path / name), what, "free space there, or fix its rights")) from None
