"""The table of the ways in which a first run fails: what is said before anything starts, and that mending is enough.

`run` begins with the same examination (`tests/pipeline/test_broken.py`). Rows that are shown elsewhere: a Redis that is
a replica (`tests/connections/test_redis_check.py`), a wrong password and a full disk (`tests/pipeline/test_broken.py`),
a run that goes on already and roles that die (`tests/launch`), a port of the embedded servers that others took (its
`servers`), and one of `rollout.metrics_port`, after which the next is taken (`tests/engines/test_vllm.py`).
What only shows once rewards are computed: those that raise, hang, or are none end the run early
(`tests/pipeline/test_dead.py`), and those that never differ are warned of at the end (`test_the_end.py`).
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.cli import main
from echo_queue.connections import store_check
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.launch.servers.s3_server import S3Server
from tests.cli.test_commands import block
from tests.first_hour.failures import EVERY, OWN_SERVERS, Failure, Place
from tests.first_hour.home import BUCKET, KEYS, Home, ServedHome
from tests.servers.redis import start_redis

CHECK = ("config", "check", "run.toml")
SMALL = 1000
"""Bytes of the largest object that the check of a store writes here."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


def ends(*words: str) -> int:
    """Gives a command in this process. Returns its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["echo-queue", *words])
        main()
    assert isinstance(ended.value.code, int | None)
    return ended.value.code or 0


@pytest.mark.parametrize("failure", EVERY.values(), ids=EVERY)
def test_what_cannot_run_is_told_before_anything_starts_and_mending_it_is_enough(
    home: Home, capfd: pytest.CaptureFixture[str], failure: Failure[Home]
) -> None:
    is_told_and_mended(home, capfd, failure)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisServer, S3Server]]:
    """A Redis and a store of the user's own."""
    redis = start_redis("redis", tmp_path_factory.mktemp("redis"))
    store = S3Server(tmp_path_factory.mktemp("s3"), KEYS)
    store.start()
    ObjectStore(store.endpoint(BUCKET), "first").create_bucket()
    yield redis, store
    store.stop()
    redis.stop()


@pytest.mark.slow
@pytest.mark.parametrize("failure", OWN_SERVERS.values(), ids=OWN_SERVERS)
def test_what_is_wrong_with_servers_of_ones_own_is_told_and_mending_it_is_enough(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    servers: tuple[RedisServer, S3Server],
    capfd: pytest.CaptureFixture[str],
    failure: Failure[ServedHome],
) -> None:
    monkeypatch.setattr(store_check, "LARGEST_BYTES", SMALL)
    home = ServedHome(tmp_path, monkeypatch, *servers)
    is_told_and_mended(home, capfd, failure)
    Home.mend(home)


def is_told_and_mended(home: Place, capfd: pytest.CaptureFixture[str], failure: Failure[Place]) -> None:
    """Makes the mistake, and asserts what is said of it, and that nothing is wrong once it is undone."""
    failure.spoil(home)
    assert ends(*CHECK) == 2
    told = capfd.readouterr().err
    home.mend()
    [(where, what, fix)] = problems(told)
    assert failure.where in where
    assert failure.what in what
    assert failure.fix in fix
    assert "hunter2" not in told
    assert not (home.folder / "runs" / "first" / "logs").exists(), "nothing was started"
    assert ends(*CHECK) == 0, capfd.readouterr().err


def problems(told: str) -> list[tuple[str, str, str]]:
    """Returns (where, what, fix) of each problem that was printed."""
    parts = (problem.partition(": ") for problem in told.split("✗ ")[1:])
    return [(where, *rest.partition("\n    → ")[::2]) for where, _, rest in parts]


def test_a_check_shows_the_first_prompts_as_the_model_will_read_them(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    home.text("model/chat_template.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}?")
    home.set(prompts__map__template="{prompt} and", prompts__map__system="one", model__max_prompt_tokens="99")
    assert ends(*CHECK) == 0
    first, second = ("    | [system]one\n    | [user]one and one and\n    | ?\n", "    | [user]one and two and\n")
    told = capfd.readouterr().out
    assert f"prompt 1, as the model reads it:\n{first}" in told and second in told and "prompt 3" not in told


def test_a_machine_on_which_embedded_services_never_started_is_warned_that_they_serve_no_other(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ends(*CHECK, "--for", "worker") == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "! services: embedded services have not started on this machine, and they serve no other machine" in told
    assert "they serve their own machine (127.0.0.1)" in told and "`echo-queue services run.toml`" in told
    assert ends(*CHECK) == 0
    assert "! services" not in capfd.readouterr().err, "a run starts them"


READING = ("status", "audit", "show", "weights ls", "weights verify", "invitations", "fleet", "estimate")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "servers"),
    [*((command, "embedded") for command in ("config check", *READING)), ("config check", "own"), ("status", "own")],
)
def test_a_command_that_only_reads_leaves_nothing_behind(
    home: Home, capfd: pytest.CaptureFixture[str], command: str, servers: str
) -> None:
    if servers == "own":
        home.set(redis__url="redis://127.0.0.1:9/0", store__url="http://127.0.0.1:9", run__dir="elsewhere/first")
    before = sorted(home.folder.rglob("*"))
    words = command.split()
    place = 2 if words[0] in ("config", "weights") else 1
    ended = ends(*words[:place], "run.toml", *words[place:])
    home.mend()
    assert (ended == 0) == (command == "estimate" or (command == "config check" and servers == "embedded"))
    assert [path for path in sorted(home.folder.rglob("*")) if path not in before] == []


@pytest.mark.slow
def test_missing_packages_are_told_with_the_extras_that_bring_them_and_no_check_imports_torch(home: Home) -> None:
    home.set(environment__kind="math", environment__function="")
    lacking = block("torch", "transformers", "math_verify")
    program = f"{lacking}\nimport sys; sys.argv[1:] = {[*CHECK]}\nfrom echo_queue.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    home.mend()
    assert done.returncode == 2
    learner = "pip install 'echo-queue[worker,learner]'"
    assert [(what, fix.strip()) for _, what, fix in problems(done.stderr)] == [
        ("needs the package torch, which is not installed", learner),
        ("needs the package transformers, which is not installed", learner),
        ("needs the package math_verify, which is not installed", "pip install 'echo-queue[environments]'"),
    ]
