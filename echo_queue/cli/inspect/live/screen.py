"""Shows a run that is being supervised: a live view on a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Collection
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from echo_queue.cli.inspect.live import view
from echo_queue.cli.inspect.live.watcher import RunWatcher
from echo_queue.launch.problem_output import print_wrapped
from echo_queue.launch.supervisor import POLL_S, Supervisor

PICTURE_EVERY_S = 0.5
LINE_EVERY_S = 5.0


class Screen:
    """The display of a supervised run. `refresh` is cheap most of the time, and is the pause of its caller's loop."""

    def __init__(self, watcher: RunWatcher, roles: Supervisor, console: Console | None = None) -> None:
        self.redis_cli = ""
        self._watcher = watcher
        self._roles = roles
        self._console = console or Console()
        self._phase = self._role = ""
        self._ended: Collection[str] | None = None
        self._next = 0.0
        self._started = time.monotonic()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.update(view.draw(self._picture()), refresh=True)
            self._live.stop()

    def phase(self, name: str, role: str = "") -> None:
        """Begins a phase, unless it is the present one. `role`: the role whose last line shows the phase's progress."""
        if name == self._phase:
            return
        self._phase, self._role, self._next = name, role, 0.0
        self.refresh()

    def end(self, phase: str, ended: Collection[str]) -> None:
        """Names the last phase, in which the picture stays on the terminal. `ended`: the workers that were stopped."""
        self._phase, self._role, self._ended = phase, "", ended

    @property
    def stderr(self) -> Console:
        """Returns where to print what belongs on stderr: above the live view, which it would tear apart."""
        return self._console if self._live else Console(stderr=True)

    def refresh(self) -> None:
        """Shows the current state if it is time to, else sleeps for a moment."""
        now = time.monotonic()
        if now < self._next:
            time.sleep(POLL_S)
            return
        if self._live:
            self._next = now + PICTURE_EVERY_S
            self._live.update(view.draw(self._picture()), refresh=True)
        else:
            self._next = now + LINE_EVERY_S
            self._console.print(view.line(self._picture()), soft_wrap=True, highlight=False)

    def tell(self, text: str) -> None:
        """Prints what stays, above the live view."""
        print_wrapped(self._console, Text(text))

    def _picture(self) -> view.RunView:
        detail = self._roles.last_lines(self._role) if self._role else ""
        elapsed_s = time.monotonic() - self._started
        roles = self._roles.states()
        picture = self._watcher.picture(self._phase, roles, self.redis_cli, detail, elapsed_s=elapsed_s)
        return picture if self._ended is None else picture.ended(self._ended)
