"""`python -m workers.evaluation CONFIG --model FOLDER …` answers held-out sets with one model, and prints the figures.

`echo-queue eval` starts it, once it has found the model. It goes on where an earlier one ended, however that ended.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.errors import DONE, STOPPED, EchoQueueError
from echo_queue.evaluation import answers_file, comparison
from echo_queue.evaluation.answers_file import AnswersFile, Asked
from echo_queue.launch import collection
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.streams import always_writable
from echo_queue.models.model_imports import spare_scipy
from workers.evaluation.asked import ScannedSet, Wishes, asked_of, configured, prompts_left, scanned
from workers.shutdown import Shutdown, on_signals

LINE_EVERY_S = 2.0


def main() -> int:
    always_writable()
    shutdown = Shutdown()
    on_signals(shutdown)
    arguments = _arguments()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        return evaluate(load(arguments.config), arguments, shutdown)
    except EchoQueueError as error:
        print_problems(error.problems)
        return error.exit_code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="workers.evaluation", description="Answers held-out sets with one model.")
    parser.add_argument("config", type=Path, help="the run's TOML file")
    parser.add_argument("--model", required=True, help="a model folder or a hub name")
    parser.add_argument("--weights", type=Path, help="a version's weights, to be loaded over the model")
    parser.add_argument("--called", required=True, help="what the figures call the model")
    parser.add_argument("--out", type=Path, required=True, help="the file of answers")
    parser.add_argument("--name", default="", help="the only evaluation; or as what --source is scored")
    parser.add_argument("--source", default="", help="prompts to answer instead")
    parser.add_argument("--samples", type=int, help="answers to each prompt")
    parser.add_argument("--temperature", type=float, help="sampling temperature")
    parser.add_argument("--limit", type=int, help="the number of prompts of each set")
    parser.add_argument("--against", type=Path, help="another model's file, to compare with")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--typed", default="", help="the command that goes on")
    return parser.parse_args()


def evaluate(config: Config, arguments: argparse.Namespace, shutdown: Shutdown) -> int:
    """Answers what the file lacks, and prints the figures. Returns the exit code. Raises `EchoQueueError`."""
    from workers.evaluation.served import digest_of

    wishes = Wishes(arguments.name, arguments.source, arguments.samples, arguments.temperature, arguments.limit)
    config = configured(config, arguments.model, wishes)
    digest = digest_of(config, arguments.weights)
    sets = scanned(config, wishes)
    asked = asked_of(config, arguments.called, digest, sets)
    against = _against(asked, arguments.against)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    with AnswersFile(arguments.out, asked) as file:
        if len(file.lines) < asked.prompts:
            progress = Progress(file, console)
            answer(config, sets, file, weights=arguments.weights, shutdown=shutdown, progress=progress)
        if len(file.lines) < asked.prompts:
            done = f"{len(file.lines):,} of {asked.prompts:,} prompts are in {file.path}"
            console.print(f"ended ({shutdown.why}): {done}; to go on: {arguments.typed}")
            return STOPPED
        _print(comparison.document_of(asked, file.path, file.lines, against), as_json=arguments.json)
    return DONE


def _against(asked: Asked, path: Path | None) -> tuple[Asked, Sequence[answers_file.PromptLine]] | None:
    if path is None:
        return None
    other, lines = answers_file.read(path)
    comparison.refuse_unlike(asked, other, path)
    return other, lines


def _print(document: comparison.EvaluationDocument, *, as_json: bool) -> None:
    if as_json:
        from echo_queue.cli.output import print_json

        print_json(document)
        return
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for line in comparison.told(document):
        console.print(line)


class Progress:
    """Tells now and then how many prompts are answered, and how fast tokens are drawn."""

    def __init__(self, file: AnswersFile, console: Console) -> None:
        self._file, self._console = file, console
        self._tokens, self._told_s = 0, time.monotonic()

    def begin(self) -> None:
        """Is called once the model is loaded."""
        self._told_s = time.monotonic()
        if before := len(self._file.lines):
            self._console.print(f"goes on: {before:,} of {self._file.asked.prompts:,} prompts were answered before")

    def note(self, tokens: int) -> None:
        """`tokens`: the number drawn since the engine was made."""
        passed_s = time.monotonic() - self._told_s
        if passed_s < LINE_EVERY_S:
            return
        rate = (tokens - self._tokens) / passed_s
        done = f"{len(self._file.lines):,} of {self._file.asked.prompts:,} prompts"
        self._console.print(f"{done}, {rate:,.0f} tokens/s")
        self._tokens, self._told_s = tokens, time.monotonic()


def answer(
    config: Config,
    sets: Sequence[ScannedSet],
    file: AnswersFile,
    *,
    weights: Path | None,
    shutdown: Shutdown,
    progress: Progress,
) -> None:
    """Answers the prompts that `file` lacks, until all are there or `shutdown` is set. Raises `EchoQueueError`."""
    from workers.environments.scorer import Scorer, environments_of

    scorers = [Scorer(one) for one in environments_of(config)]  # their processes start while torch is imported
    try:
        with collection.paused():
            if config.rollout.engine == "transformers":
                spare_scipy()
            import torch

            from workers.completers import Completers
            from workers.evaluation.answering import NAME, AnswerLoop
            from workers.evaluation.local_queue import LocalQueue
            from workers.evaluation.served import engine_of
            from workers.held_leases import HeldLeases
            from workers.prompt_encoder import PromptEncoder

            torch.set_num_threads(config.worker_threads)
            encoder = PromptEncoder.open(config.base_model, config.model.max_prompt_tokens)
            engine = engine_of(config, encoder.stop_tokens, weights)
        try:
            held = HeldLeases()
            queue = LocalQueue(file, config.queue.max_attempts, encoder.decode)
            loop = AnswerLoop(
                config,
                engine=engine,
                encoder=encoder,
                completers=Completers(config, NAME, queue, scorers=scorers, prompts=encoder, held=held),
                queue=queue,
                held=held,
                shutdown=shutdown,
                report=lambda: progress.note(engine.sampled),
            )
            progress.begin()
            loop.run(prompts_left(sets, {(line.set, line.index) for line in file.lines}))
        finally:
            engine.close()
    finally:
        for scorer in scorers:
            scorer.close()


if __name__ == "__main__":
    sys.exit(main())
