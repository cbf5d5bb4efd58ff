"""The command `export`: finds a model of the run, and becomes the program that writes it as a Hugging Face folder.

All that it was told is checked before anything is fetched: the version's name, the folder, the bucket and the hub.
"""

import hashlib
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from echo_queue.cli.inspect.card_facts import gather
from echo_queue.cli.inspect.named_model import VERSION, FoundModel, find
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.launch.roles import Program, become, command, flags
from echo_queue.models.exported import EXPORTS, refuse_foreign, temporary_of
from echo_queue.reporting.model_card import FILE as CARD
from echo_queue.reporting.model_card import CardFacts, card_of
from echo_queue.submission.sources.source import S3

NAMES = ("final", "best", "base")
PROGRAM: Program = "learner.export"


@dataclass(frozen=True)
class Destination:
    """Where an export goes: to a folder or to a bucket's (`target`), to a repository of the hub (`push`), or both."""

    target: str
    push: str
    public: bool

    @property
    def bucket(self) -> str:
        return self.target if self.target.startswith(S3) else ""

    @property
    def folder(self) -> Path | None:
        return Path(self.target).resolve() if self.target and not self.bucket else None

    def workshop(self, config: Config) -> Path:
        """Returns the folder in which the model is made, the same one whenever the export is tried again."""
        if self.folder:
            return temporary_of(self.folder)
        digest = hashlib.sha256(f"{self.target} {self.push}".encode()).hexdigest()
        return temporary_of((config.run.dir / EXPORTS / f"export-{digest[:16]}").resolve())

    def require(self, config: Config) -> None:
        """Raises `ConfigError` or `ServiceError` unless an export may go there."""
        if not self.target and not self.push:
            fix = f"name a folder, {S3}BUCKET/PREFIX, or a repository with --push OWNER/NAME"
            raise ConfigError(Problem("DIR", "is missing: the export would go nowhere", fix))
        if self.public and not self.push:
            raise ConfigError(Problem("--public", "means nothing without --push", "add --push OWNER/NAME"))
        if self.folder:
            refuse_foreign(self.folder)
        if self.bucket:
            from echo_queue.weights.destinations.bucket import BucketFolder

            BucketFolder.of(self.bucket, config).require()
        if self.push:
            from echo_queue.weights.destinations.hub import HubRepository

            HubRepository.of(self.push, public=self.public).require()


def export(
    path: Path, config: Config, version: str, destination: Destination, *, adapter: bool, within_run: bool
) -> NoReturn:
    """Becomes the program. `within_run`: the learner exports, with its own rights.

    Raises `ConfigError` for a destination or a version that cannot be, `ServiceError` for one that cannot be reached.
    """
    if version not in NAMES and not VERSION.fullmatch(version):
        fix = f"write a version, such as 1.12 or 12, or one of {', '.join(NAMES)}"
        raise ConfigError(Problem("VERSION", f"{version!r} is no version of a run", fix))
    command(PROGRAM, path)
    destination.require(config)
    workshop = destination.workshop(config)
    try:
        workshop.mkdir(parents=True, exist_ok=True)
        found = find(config, version, workshop, "learner" if within_run else "worker")
        source = _adapters(found) if adapter and found.weights is None else found.folder
        told = _told(path, version, destination, adapter)
        card = _write_card(config, workshop, gather(config, found.called, version, told, adapter=adapter))
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise ConfigError(Problem(str(workshop), what, "name another folder, or make room")) from None
    except BaseException:
        shutil.rmtree(workshop, ignore_errors=True)
        raise
    words: dict[str, object] = {
        "model": source,
        "weights": found.weights,
        "called": found.called,
        "workshop": workshop,
        "card": card,
        "to": destination.folder,
        "bucket": destination.bucket,
        "push": destination.push,
        "public": destination.public,
        "adapter": adapter,
    }
    become(PROGRAM, path, *flags(words))


def _write_card(config: Config, workshop: Path, facts: CardFacts) -> Path:
    file = workshop / CARD
    file.write_text(card_of(config, facts), encoding="utf-8")
    return file


def _told(path: Path, version: str, destination: Destination, adapter: bool) -> str:
    """Returns the command as the card tells it: of a path on a disk the last part alone."""
    words = ["echo-queue", "export", path.name, version]
    words += [destination.folder.name] if destination.folder else []
    words += [destination.bucket] if destination.bucket else []
    words += ["--push", destination.push] if destination.push else []
    words += [*(["--public"] if destination.public else []), *(["--adapter"] if adapter else [])]
    return shlex.join(words)


def _adapters(found: FoundModel) -> str:
    """Returns the adapters' folder in that of a model that was written whole."""
    folder = Path(found.folder, "adapter")
    if found.called == "base" or not folder.is_dir():
        what = f"{found.called} has no adapters: there is no folder {folder}"
        raise ConfigError(Problem("--adapter", what, "leave --adapter out, or name a version that is stored"))
    return str(folder)
