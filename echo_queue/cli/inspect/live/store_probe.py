"""Asks whether the object store answers, for a view of a run that stands still."""

import os
import time
from collections.abc import Callable

import urllib3

from echo_queue.config import Config
from echo_queue.connections.endpoints import store_endpoint
from echo_queue.connections.storage.proxies import proxy_variable
from echo_queue.errors import EchoQueueError

EVERY_S = 5.0
TIMEOUT_S = 1.5


class StoreProbe:
    """The store as this machine reaches it. Any answer will do, so that no keys are needed."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._asked_at = -EVERY_S
        self._said = ""

    def trouble(self) -> str:
        """Returns why the store does not answer; empty if it does. It is asked every `EVERY_S` at most."""
        if self._clock() - self._asked_at >= EVERY_S:
            self._said = self._ask()
            self._asked_at = self._clock()
        return self._said

    @staticmethod
    def _to(url: str) -> urllib3.PoolManager:
        """Returns what asks the store on the way that everybody takes: through a proxy of the shell, if it names one.

        urllib3 itself takes none.
        """
        variable = proxy_variable(url)
        if not variable:
            return urllib3.PoolManager()
        proxy = os.environ[variable]
        return urllib3.ProxyManager(proxy if "://" in proxy else f"http://{proxy}")

    def _ask(self) -> str:
        try:
            url = store_endpoint(self._config, "monitor").url  # an embedded store may have another one by now
            self._to(url).request("HEAD", url, timeout=TIMEOUT_S, retries=False, redirect=False)
        except urllib3.exceptions.SSLError:
            return ""  # it answers; whoever uses it checks its certificate
        except urllib3.exceptions.HTTPError as error:
            return f"the object store does not answer this machine ({url}): {error}"
        except EchoQueueError:
            pass
        return ""
