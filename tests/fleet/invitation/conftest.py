import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from echo_queue.cli.commands import app
from echo_queue.fleet.invitation.home import Home
from echo_queue.services.serving import prepare
from echo_queue.weights import Signer
from learner.publication import signing_key
from tests.fleet.invitation.inviting_run import VARIABLES, InvitingRun, inviting_run
from tests.queue.clients import Clients

Say = Callable[..., Result]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InvitingRun]:
    """A run whose learner has begun."""
    with inviting_run(tmp_path_factory.mktemp("home")) as run:
        with as_it_was():
            os.environ.update(VARIABLES)
            list(prepare(run.config()))
            learner = Clients.connected_as(run.config(), "learner")
            learner.publish_keys(learner.resume().lineage, signing_key.run_keys(Signer.generate()))
        yield run


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Gives a command of `echo-queue`, in a folder of this test, with the secrets of whoever invites."""
    monkeypatch.chdir(tmp_path)

    def said(*words: object) -> Result:
        with as_it_was():
            return CliRunner().invoke(app, [str(word) for word in words])

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return said


@contextmanager
def secrets_of(home: Path) -> Iterator[None]:
    """Gives this process the secrets of a machine that has joined in `home`."""
    with as_it_was():
        Home(home, "").apply_environment()
        yield


@contextmanager
def as_it_was() -> Iterator[None]:
    """Restores the environment in the end."""
    before = dict(os.environ)
    try:
        yield
    finally:
        _restore(before)


@pytest.fixture
def invited(say: Say, run: InvitingRun) -> Callable[..., str]:
    """Gives the token of a fresh invitation."""

    def invite(*words: object) -> str:
        done = say("invite", run.config_file(), *words)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    return invite


def _restore(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)
