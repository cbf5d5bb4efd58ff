"""The watcher of a run against real services."""

from collections.abc import Callable, Iterator

import pytest

from echo_queue.cli.live.watcher import RunWatcher
from echo_queue.config import Config
from echo_queue.services.serving import Services


@pytest.fixture
def served(configure: Callable[..., Config]) -> Iterator[Config]:
    config = configure()
    services = Services(config)
    services.start()
    yield config
    services.stop()


def test_roles_that_start_are_loading_and_not_missing(served: Config) -> None:
    """Whoever looks at a run that nobody starts is told who is missing."""
    watched, started = RunWatcher(served), RunWatcher(served)
    started.expect_within(1e9)
    for watcher in (watched, started):
        watcher.refresh()
        assert watcher.status is not None and not watcher.workers_came
    assert watched.held_up == ("no learner has begun yet",)
    assert started.held_up == ()
