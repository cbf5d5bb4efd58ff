"""`python -m learner.export CONFIG --to FOLDER …` writes a model that was found as a Hugging Face folder.

`echo-queue export` starts it, once it has found the model and, of a version, its weights.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from echo_queue import failpoints
from echo_queue.config.loading import load
from echo_queue.errors import DONE, ConfigError, EchoQueueError, Problem
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.streams import always_writable
from echo_queue.models.exported import Mark, refuse_foreign, temporary_of


def main() -> int:
    always_writable()
    parser = argparse.ArgumentParser(prog="learner.export", description="Writes a model as a Hugging Face folder.")
    parser.add_argument("config", type=Path, help="the run's TOML file")
    parser.add_argument("--model", type=Path, required=True, help="the model's folder, or that of its base model")
    parser.add_argument("--weights", type=Path, help="a version's weights, which belong to this base model")
    parser.add_argument("--to", type=Path, required=True, help="the folder to write")
    parser.add_argument("--called", required=True, help="what the folder calls the model")
    parser.add_argument("--adapter", action="store_true", help="the adapters alone")
    arguments = parser.parse_args()
    try:
        export(arguments)
    except EchoQueueError as error:
        print_problems(error.problems)
        return error.exit_code
    print(arguments.to)
    return DONE


def export(arguments: argparse.Namespace) -> None:
    """Writes the folder, and removes what was made for it. Raises `EchoQueueError`."""
    config, folder, workshop = load(arguments.config), arguments.to, temporary_of(arguments.to)
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
        Mark(config.run.name, arguments.called, arguments.adapter).write(made)

    try:
        failpoints.step("write export", write, made)
        refuse_foreign(folder)
        put_in_place(made, folder)
    except (OSError, SafetensorError) as error:
        what = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(Problem(str(folder), what, "make room, or name another folder")) from None
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
