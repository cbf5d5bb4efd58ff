"""`status`: the state of a run, printed once or kept up to date. It is the same on every machine that may look."""

import time
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console
from rich.live import Live

from echo_queue import __version__
from echo_queue.cli.documents import Phase, StatusDocument
from echo_queue.cli.inspect.live import view
from echo_queue.cli.inspect.live.watcher import OPEN, RunWatcher, monitor
from echo_queue.cli.output import print_json
from echo_queue.cli.redis_cli import monitor_line
from echo_queue.config import Config
from echo_queue.launch.streams import reader_is_gone
from echo_queue.queue import Status
from echo_queue.queue.diagnosis import lives
from echo_queue.queue.pool_status import pools_of

LINE_EVERY_S = 5.0
SHOWN: Mapping[Phase, str] = {
    "waiting": "waiting for a learner to begin",
    "stopped": "stopped: no learner or worker lives",
}


def show(config: Config, *, watch: bool, as_json: bool) -> None:
    """Prints the state of the run, its last one if its embedded services have ended with it.

    Raises `ServiceError` where Redis cannot be reached, unless `watch`, which goes on until the run has ended.
    """
    if watch:
        _stay(config)
        return
    watcher = RunWatcher(config)
    watcher.refresh()
    status = watcher.status or monitor(config).status()
    if as_json:
        print_json(_document(config, watcher, status))
    else:
        Console().print(view.draw(watcher.picture(_phase_shown(watcher), redis_cli=monitor_line(config))))


def _stay(config: Config) -> None:
    console = Console()
    line = monitor_line(config)
    try:
        live = Live(console=console, auto_refresh=False, screen=console.is_terminal)
        watcher = RunWatcher(config)
        watcher.refresh()  # so that there is something to see at once
        with watcher, live:
            while True:
                picture = watcher.picture(_phase_shown(watcher), redis_cli=line)
                if console.is_terminal:
                    live.update(view.draw(picture), refresh=True)
                else:
                    console.print(view.line(picture), soft_wrap=True, highlight=False)
                if _phase_shown(watcher) in ("finished", "ended") or reader_is_gone():
                    break
                time.sleep(0.5 if console.is_terminal else LINE_EVERY_S)
    except KeyboardInterrupt:
        return
    if console.is_terminal:
        console.print(view.draw(picture))  # the screen of the live picture is gone


def _document(config: Config, watcher: RunWatcher, status: Status) -> StatusDocument:
    figures, update = watcher.figures, watcher.newest
    return StatusDocument(
        run=config.run.name,
        phase=_phase(status, ended=watcher.ended),
        release=__version__,
        skew=watcher.skew,
        queue=replace(status, workers=view.by_name(status.workers)),
        training=figures.summary if update else None,
        recent=figures.recent if update else None,
        update=update,
        held_up=watcher.held_up,
        dead=watcher.dead,
        pools=pools_of(status.workers),
        failed_sets=watcher.failed,
        evaluations=watcher.evaluations,
    )


def _phase(status: Status, *, ended: bool) -> Phase:
    if status.finished or ended:
        return "finished" if status.finished else "ended"
    if not status.learner.lineage:
        return "waiting"
    return "running" if lives(status) else "stopped"


def _phase_shown(watcher: RunWatcher) -> str:
    if watcher.status is None:
        return "no answer"
    phase = _phase(watcher.status, ended=watcher.ended)
    if phase == "running" and watcher.waits_for_prompts:
        return OPEN
    return SHOWN.get(phase, phase)
