"""`python -m learner.export CONFIG …` writes a model that was found as a Hugging Face folder.

`echo-queue export` starts it, once it has found the model and, of a version, its weights, and has written its card. The
folder is made in the workshop. It then goes to a bucket (`--bucket`), to the hub (`--push`) or to a folder (`--to`): to
the folder first, so that one is there if the hub is away.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from echo_queue import __version__, failpoints
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.errors import DONE, ConfigError, EchoQueueError, Problem
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.streams import always_writable
from echo_queue.models.exported import Mark, refuse_foreign
from echo_queue.reporting.model_card import FILE as CARD
from echo_queue.weights.destinations.bucket import BucketFolder


def main() -> int:
    always_writable()
    parser = argparse.ArgumentParser(prog="learner.export", description="Writes a model as a Hugging Face folder.")
    parser.add_argument("config", type=Path, help="the run's TOML file")
    parser.add_argument("--model", type=Path, required=True, help="the model's folder, or that of its base model")
    parser.add_argument("--weights", type=Path, help="a version's weights, which belong to this base model")
    parser.add_argument("--called", required=True, help="what the folder calls the model")
    parser.add_argument("--workshop", type=Path, required=True, help="the folder in which it is made, then removed")
    parser.add_argument("--card", type=Path, required=True, help="the file of the model card")
    parser.add_argument("--to", type=Path, help="the folder to write")
    parser.add_argument("--bucket", help="the folder of a bucket to write, s3://BUCKET/PREFIX")
    parser.add_argument("--push", help="the repository of the hub to write, OWNER/NAME")
    parser.add_argument("--public", action="store_true", help="make the repository public")
    parser.add_argument("--adapter", action="store_true", help="the adapters alone")
    arguments = parser.parse_args()
    try:
        for place in export(arguments):
            print(place, flush=True)
    except EchoQueueError as error:
        print_problems(error.problems)
        return error.exit_code
    return DONE


def export(arguments: argparse.Namespace) -> Iterator[str]:
    """Yields each place where the model is, once it is there; removes what was made for it. Raises `EchoQueueError`."""
    config, workshop = load(arguments.config), arguments.workshop
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from safetensors import SafetensorError
    from transformers.utils.logging import disable_progress_bar

    from learner.export.model_folder import copy_model, put_in_place, write_version

    disable_progress_bar()
    made = workshop / "model"

    def write() -> None:
        shutil.rmtree(made, ignore_errors=True)
        made.parent.mkdir(parents=True, exist_ok=True)
        if arguments.weights is None:
            copy_model(arguments.model, made)
        else:
            write_version(config, arguments.model, arguments.weights, made, adapter=arguments.adapter)
        shutil.copyfile(arguments.card, made / CARD)
        Mark(config.run.name, arguments.called, arguments.adapter).write(made)

    try:
        failpoints.step("write export", write, made)
        if arguments.to:
            refuse_foreign(arguments.to)
            put_in_place(made, arguments.to)
            made = arguments.to
            yield str(made)
        if arguments.bucket:
            BucketFolder.of(arguments.bucket, config).upload(made)
            yield arguments.bucket
        if arguments.push:
            yield _pushed(config, arguments, made)
    except (OSError, SafetensorError) as error:
        what = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(Problem(str(arguments.to or workshop), what, "make room, or name another folder")) from None
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _pushed(config: Config, arguments: argparse.Namespace, folder: Path) -> str:
    """Pushes the folder to the hub. Returns the address of the commit."""
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    from echo_queue.weights.destinations.hub import HubRepository

    disable_progress_bars()
    message = f"{config.run.name} {arguments.called}, exported by echo-queue {__version__}"
    repository = HubRepository.of(arguments.push, public=arguments.public)
    return repository.upload(folder, message, told=lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    sys.exit(main())
