"""`submit`: sends a prompt set to the Celery workers, and prints progress until all of it is in the backlog."""

import time

from rich.console import Console

from echo_queue.config import Config
from echo_queue.launch.problem_output import WARNING, print_problems
from echo_queue.queue.counts import counted
from echo_queue.reporting import outcome
from echo_queue.submission import Progress, submit

LINE_EVERY_S = 2.0


def submit_set(config: Config, source: str | None, name: str | None, *, within_run: bool) -> None:
    """Submits the configured sets, or `source` as the set `name` alone, and waits until all has arrived.

    `within_run`: a set that has arrived whole is left as it is, whatever has become of its source.
    """
    console = Console(highlight=False, soft_wrap=True)
    began = said = time.monotonic()

    def report(progress: Progress) -> None:
        nonlocal said
        if progress.waits:
            console.print(f"{progress.set}: {progress.waits} (it is waited for, {config.submission.deadline_s:,.0f} s)")
            return
        if time.monotonic() - said >= LINE_EVERY_S:
            said = time.monotonic()
            failed = f", {counted(progress.failed_chunks, 'chunk')} failed" if progress.failed_chunks else ""
            where = "held out" if config.evaluation_of(progress.set) else "in the backlog"
            console.print(f"{progress.set}: {progress.scanned:,} checked, {progress.arrived:,} {where}{failed}")

    outcome.forget(config)
    sent = submit(config, source, name, progress=report, within_run=within_run)
    seconds = time.monotonic() - began
    for one in (*sent.held_out, *sent.components, sent):
        prompts, chunks = counted(one.prompts, "prompt"), counted(one.chunks, "chunk")
        if one.new:
            done = "held out" if config.evaluation_of(one.set) else "submitted"
            console.print(f"{one.set}: {prompts} in {chunks} {done} in {seconds:.1f} s")
        else:
            print_problems(one.ignored, console, sign=WARNING)
            console.print(f"{one.set}: {prompts} submitted before; nothing was added")
