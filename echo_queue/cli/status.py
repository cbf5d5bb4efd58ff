"""`status`: the state of a run, printed once or kept up to date."""

import time
from dataclasses import asdict

from rich.console import Console
from rich.live import Live

from echo_queue.cli.live import view
from echo_queue.cli.live.watcher import RunWatcher, monitor
from echo_queue.cli.output import print_json
from echo_queue.cli.redis_cli import monitor_line
from echo_queue.config import Config

LINE_EVERY_S = 5.0


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
        print_json({"queue": asdict(status), "training": asdict(watcher.figures.summary), "ended": watcher.ended})
    else:
        Console().print(view.draw(watcher.picture(_phase(watcher), redis_cli=monitor_line(config))))


def _stay(config: Config) -> None:
    console = Console()
    line = monitor_line(config)
    try:
        live = Live(console=console, auto_refresh=False, screen=console.is_terminal)
        with RunWatcher(config) as watcher, live:
            while True:
                picture = watcher.picture(_phase(watcher), redis_cli=line)
                if console.is_terminal:
                    live.update(view.draw(picture), refresh=True)
                else:
                    console.print(view.line(picture), soft_wrap=True, highlight=False)
                if watcher.ended:
                    break
                time.sleep(0.5 if console.is_terminal else LINE_EVERY_S)
    except KeyboardInterrupt:
        return


def _phase(watcher: RunWatcher) -> str:
    if watcher.status is None:
        return "no answer"
    return "finished" if watcher.status.finished else "ended" if watcher.ended else "running"
