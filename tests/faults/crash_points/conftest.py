"""The servers, the model and the fork server, once for each module of this folder."""

from collections.abc import Iterator

import pytest

from tests.faults.crash_points.crashing_run import CrashHarness


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashHarness]:
    with pytest.MonkeyPatch.context() as patch, CrashHarness(tmp_path_factory.mktemp("crash-points")) as harness:
        for name, value in harness.environ.items():
            patch.setenv(name, value)
        yield harness
