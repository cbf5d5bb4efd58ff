"""The command `eval`: finds the model that is to be evaluated, and becomes the program that evaluates it.

The weights of a version are fetched once, into `evals/models` of the run's directory, where a command that goes on
finds them without the run's services.
"""

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from echo_queue.cli.inspect.named_model import EVALS, find
from echo_queue.config import Config
from echo_queue.launch.roles import become, flags


def evaluate(path: Path, config: Config, model: str, out: Path | None, options: Mapping[str, object]) -> NoReturn:
    """Becomes the program. `options`: further options of it, by name; None, an empty text and False are not given."""
    found = find(config, model)
    source, name = (str(options.get(key) or "") for key in ("source", "name"))
    file = "-".join(filter(None, (found.called, Path(source.partition(" ")[0]).stem, name)))
    file = re.sub(r"[^\w.-]+", "-", file).strip("-")
    words: dict[str, object] = {
        "model": found.folder,
        "weights": found.weights,
        "called": found.called,
        "out": out or config.run.dir / EVALS / f"{file}.jsonl",
        "typed": shlex.join(["echo-queue", *sys.argv[1:]]),
        **options,
    }
    become("workers.evaluation", path, *flags(words))
