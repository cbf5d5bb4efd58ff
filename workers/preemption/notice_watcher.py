"""The thread that polls a source of notices and passes them on to the worker."""

import logging
import threading

from workers.preemption.notice_source import Notice, NoticeSource, NoticeSourceAway, Recommendation
from workers.shutdown import Shutdown

log = logging.getLogger(__name__)


class NoticeWatcher(threading.Thread):
    """Polls until the worker leaves. A source that is away is logged once, however often it is away."""

    def __init__(self, source: NoticeSource, shutdown: Shutdown, poll_s: float) -> None:
        super().__init__(name="preemption", daemon=True)
        self._source = source
        self._shutdown = shutdown
        self._poll_s = poll_s
        self._warned = False

    def run(self) -> None:
        while not self._shutdown.is_set():
            try:
                self._pass_on(self._source.poll())
            except NoticeSourceAway as error:
                self._warn_once(error)
            self._shutdown.wait(self._poll_s)

    def _pass_on(self, notice: Notice | Recommendation | None) -> None:
        match notice:
            case Notice(why, within_s):
                self._shutdown.leave(why, within_s, "preempted")
            case Recommendation(why):
                self._shutdown.rest(why)

    def _warn_once(self, error: NoticeSourceAway) -> None:
        if not self._warned:
            log.warning(
                "spot notices cannot be received; their source is polled again without further warnings: %s", error
            )
        self._warned = True
