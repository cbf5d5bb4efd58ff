"""The hub, from which base models come that are no folder here.

A role opens a hub model as the folder of its files in the hub's cache on this machine (huggingface_hub,
`snapshot_download`), so that configuration, tokenizer and weights are of one commit.
"""

from pathlib import Path

from echo_queue.config import Config

FILES = ("*.json", "*.jinja", "*.txt", "*.model", "model*.safetensors")
"""The files that a model is opened from, in a repository that may hold it in other formats as well."""
BASE_FOLDER = "base"
"""The folder of the object store in which a learner stores a base model that is no hub model."""


def base_folder(config: Config) -> str:
    """Returns the folder of the run's base model, with what a hub model lacks here downloaded.

    Raises `OSError`, with the hub's words in one line, if neither the hub nor its cache here has this revision.
    """
    name = config.base_model
    if config.model.base == "init" or Path(name).is_dir():
        return name
    from huggingface_hub import snapshot_download

    revision = config.model.revision
    try:
        return snapshot_download(name, revision=revision, allow_patterns=list(FILES))
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())
        what = f"there is no folder {name} (looked in {Path.cwd()}), and the hub gave no {name} at revision {revision}"
        raise OSError(f"{what}: {said}") from None


def reachable(path: Path) -> bool:
    """Returns whether this user may look at `path`: False only if the rights of a folder above it forbid that."""
    try:
        path.exists()
    except PermissionError:
        return False
    return True
