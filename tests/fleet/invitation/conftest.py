import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from echo_queue.cli.commands import app
from echo_queue.fleet.invitation.home import Home
from echo_queue.launch.servers.serving import prepare
from echo_queue.weights import Signer
from learner.publication import signing_key
from tests.fleet.invitation.inviting_run import VARIABLES, InvitingRun, inviting_run
from tests.queue.clients import Clients
from tests.variables import variables_kept

Say = Callable[..., Result]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InvitingRun]:
    """A run whose learner has begun."""
    with inviting_run(tmp_path_factory.mktemp("home")) as run:
        with variables_kept():
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
        with variables_kept():
            return CliRunner().invoke(app, [str(word) for word in words])

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return said


@contextmanager
def secrets_of(home: Path) -> Iterator[None]:
    """Gives this process the secrets of a machine that has joined in `home`."""
    with variables_kept():
        Home(home, "").apply_environment()
        yield


@pytest.fixture
def invited(say: Say, run: InvitingRun) -> Callable[..., str]:
    """Gives the token of a fresh invitation."""

    def invite(*words: object) -> str:
        done = say("invite", run.config_file(), *words)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    return invite
