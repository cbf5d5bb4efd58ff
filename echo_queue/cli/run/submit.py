"""`submit`: sends a prompt set to the Celery workers, and prints progress until all of it is in the backlog."""

import time

from rich.console import Console

from echo_queue.config import Config
from echo_queue.launch.problem_output import WARNING, print_problems
from echo_queue.queue.counts import counted
from echo_queue.reporting import outcome
from echo_queue.submission import Progress, submit
from echo_queue.submission.declaration import choose

LINE_EVERY_S = 2.0


def submit_set(config: Config, source: str | None, name: str | None, *, within_run: bool) -> None:
    """Submits the configured set, or `source` as the set `name`, and waits for it.

    `within_run`: a set that has arrived whole is left as it is, whatever has become of its source.
    """
    console = Console(highlight=False, soft_wrap=True)
    chosen = config.model_copy(update={"prompts": choose(config, source, name)})
    began = said = time.monotonic()

    def report(progress: Progress) -> None:
        nonlocal said
        if progress.waits:
            console.print(f"{progress.set}: {progress.waits} (it is waited for, {config.submission.deadline_s:,.0f} s)")
            return
        if time.monotonic() - said >= LINE_EVERY_S:
            said = time.monotonic()
            failed = f", {counted(progress.failed_chunks, 'chunk')} failed" if progress.failed_chunks else ""
            console.print(f"{progress.set}: {progress.scanned:,} checked, {progress.arrived:,} in the backlog{failed}")

    outcome.forget(config)
    sent = submit(chosen, progress=report, within_run=within_run)
    seconds = time.monotonic() - began
    if sent.new:
        prompts, chunks = counted(sent.prompts, "prompt"), counted(sent.chunks, "chunk")
        console.print(f"{sent.set}: {prompts} in {chunks} submitted in {seconds:.1f} s")
    else:
        print_problems(sent.ignored, console, sign=WARNING)
        console.print(f"{sent.set}: {counted(sent.prompts, 'prompt')} submitted before; nothing was added")
