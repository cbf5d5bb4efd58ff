"""Roles that are forked are the roles that their commands start, whatever becomes of the fork server."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from echo_queue.launch.fork_server import client
from echo_queue.launch.fork_server.client import PROGRAM, ForkServer
from echo_queue.launch.fork_server.fork_request import MESSAGE_BYTES, READY, ForkRequest
from echo_queue.launch.import_path import PYTHON
from echo_queue.launch.supervisor import BACKOFF, Role, RoleError, Supervisor
from tests.processes import children_of, command_of, is_running
from tests.source_code import ROOT
from tests.waiting import wait_until

QUICK = replace(BACKOFF, first_pause_s=0.01)
IMPORTS = "json"
SLOW = "tests.launch.slow_import"


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The roles of these tests use no GPU, whatever this machine has."""
    monkeypatch.setattr(client, "GPU_DRIVERS", ())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # has the roles of these tests


def forked(file: Path, *code: str) -> Role:
    command = (*PYTHON, "-m", "tests.launch.forked_role", str(file), *code)
    return Role(file.name, command, ends=bool(code), forked=True)


def facts(file: Path) -> dict[str, Any]:
    return orjson.loads(file.read_bytes())  # type: ignore[no-any-return]


def server_of(roles: Supervisor) -> int:
    assert roles._fork_server
    return roles._fork_server.pid


def begun(*files: Path) -> Callable[[], bool]:
    return lambda: all(file.exists() for file in files)


def begin(roles: Supervisor, file: Path) -> dict[str, Any]:
    """Starts a role, and returns what it says of itself once it has begun."""
    roles.start(forked(file))
    roles.wait(begun(file), 60, "the role")
    return facts(file)


def kill(roles: Supervisor, file: Path) -> dict[str, Any]:
    """Kills the role of this file, and returns what it says of itself once it has begun again."""
    killed = facts(file)["pid"]
    file.unlink()
    os.kill(killed, signal.SIGKILL)
    roles.wait(begun(file), 60, "its second life")
    return facts(file)


def await_imports(roles: Supervisor) -> None:
    roles.wait(lambda: not roles._fork_server or not roles._fork_server.importing(), 60, "the imports")


def test_a_forked_role_finds_what_a_started_one_finds(tmp_path: Path) -> None:
    environ = {**os.environ, "FORKED_ROLE": "set"}
    found = {}
    for module in ("", IMPORTS):
        file = tmp_path / f"with {module}"
        with Supervisor(tmp_path / "run", environ, forked_with=module) as roles:
            found[module] = begin(roles, file)
            assert found[module]["parent"] == (server_of(roles) if module else os.getpid())
            words = [word for word in command_of(found[module]["pid"]) if word]
            assert " ".join(words) == f"{sys.executable} -P -m tests.launch.forked_role {file}"
    for one in found.values():
        assert one["session"] == one["pid"] and one["input"] == os.devnull and one["variable"] == "set"
    started, of_fork = found.values()
    assert {name for name in started if started[name] != of_fork[name]} == {
        *("arguments", "parent", "pid", "random", "session"),
    }, "the number of open files is the same"
    assert (tmp_path / "run" / "logs" / f"with {IMPORTS}.log").read_text().splitlines()[-1] == "begun"


@pytest.mark.slow
def test_forked_roles_draw_different_random_numbers(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    with Supervisor(tmp_path, forked_with="torch") as roles:
        roles.start(*(forked(file, "0") for file in files))
        roles.wait(begun(*files), 60, "both")
    one, two = (facts(file)["random"] for file in files)
    assert set(one) == {"numpy", "python", "torch"}
    assert all(one[name] != two[name] for name in one)


def test_the_exit_code_of_a_forked_role_is_heard(tmp_path: Path) -> None:
    with Supervisor(tmp_path, backoff=QUICK, forked_with=IMPORTS) as roles:
        roles.start(forked(tmp_path / "done", "0"))
        roles.wait(lambda: roles.done("done"), 60, "its end")
        roles.start(forked(tmp_path / "refuses", "2"))
        with pytest.raises(RoleError, match="cannot continue"):
            roles.wait(lambda: False, 60, "the refusal")


def test_a_forked_role_that_is_killed_is_forked_again(tmp_path: Path) -> None:
    file = tmp_path / "worker"
    with Supervisor(tmp_path, backoff=QUICK, forked_with=IMPORTS) as roles:
        begin(roles, file)
        assert kill(roles, file)["parent"] == server_of(roles) and roles.states()[0].deaths == 1


def test_while_it_imports_nothing_waits_for_it(tmp_path: Path) -> None:
    file = tmp_path / "worker"
    environ = {**os.environ, "SLOW_IMPORT": str(tmp_path / "go")}
    with Supervisor(tmp_path, environ, forked_with=SLOW) as roles:
        roles.start(forked(file))
        roles.wait((tmp_path / "go.waits").exists, 60, "the import")
        roles.tick()
        state = roles.states()[0]
        assert state.alive and not state.deaths and not file.exists()
        (tmp_path / "go").touch()
        roles.wait(begun(file), 60, "the role")
        assert facts(file)["parent"] == server_of(roles)


def test_a_run_that_is_stopped_while_it_imports_leaves_nothing(tmp_path: Path) -> None:
    environ = {**os.environ, "SLOW_IMPORT": str(tmp_path / "go")}
    with Supervisor(tmp_path, environ, forked_with=SLOW) as roles:
        roles.start(forked(tmp_path / "worker"))
        roles.wait((tmp_path / "go.waits").exists, 60, "the import")
        server = server_of(roles)
    assert not is_running(server) and not (tmp_path / "worker").exists()


def test_one_that_cannot_import_is_done_without(tmp_path: Path) -> None:
    file = tmp_path / "worker"
    with Supervisor(tmp_path, forked_with="no_such_package") as roles:
        assert begin(roles, file)["parent"] == os.getpid()
    assert "No module named 'no_such_package'" in (tmp_path / "logs" / "fork-server.log").read_text()


def test_one_that_imports_for_ever_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "IMPORTS_S", 0.0)
    file = tmp_path / "worker"
    environ = {**os.environ, "SLOW_IMPORT": str(tmp_path / "never")}
    with Supervisor(tmp_path, environ, forked_with=SLOW) as roles:
        assert begin(roles, file)["parent"] == os.getpid()


def test_its_roles_outlive_it_and_what_dies_later_is_started_by_its_command(tmp_path: Path) -> None:
    file = tmp_path / "worker"
    with Supervisor(tmp_path, backoff=QUICK, forked_with=IMPORTS) as roles:
        first, server = begin(roles, file)["pid"], server_of(roles)
        os.kill(server, signal.SIGKILL)
        roles.wait(lambda: not is_running(server), 60, "the end of the fork server")
        roles.tick()
        assert is_running(first) and not roles.states()[0].deaths
        assert kill(roles, file)["parent"] == os.getpid()


def test_a_machine_with_a_gpu_forks_no_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "GPU_DRIVERS", (tmp_path,))
    with Supervisor(tmp_path, forked_with=IMPORTS) as roles:
        assert roles._fork_server is None


SUPERVISE = """
import sys
from pathlib import Path
from echo_queue.launch.fork_server import client
from echo_queue.launch.supervisor import Supervisor
from tests.launch.test_fork_server import IMPORTS, forked
client.GPU_DRIVERS = ()
with Supervisor(Path(sys.argv[1]), forked_with=IMPORTS) as roles:
    roles.start(forked(Path(sys.argv[1], 'worker')))
    roles.wait(lambda: False, 600, 'the kill')
"""


def test_no_forked_role_survives_a_killed_supervisor(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", SUPERVISE, str(tmp_path)])
    wait_until(begun(tmp_path / "worker"), "the role")
    role = facts(tmp_path / "worker")
    assert is_running(role["pid"]) and is_running(role["parent"])
    first.kill()
    first.wait()
    with Supervisor(tmp_path):
        assert not is_running(role["pid"]) and not is_running(role["parent"])


def served() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """A fork server that is ready, and the supervisor's end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen([sys.executable, "-m", PROGRAM, IMPORTS], stdin=theirs)
    theirs.close()
    assert ours.recv(MESSAGE_BYTES) == READY
    return ours, server


def ask(ours: socket.socket, file: Path) -> int:
    """Asks for a role, and returns its process id once the fork server has told that."""
    request = ForkRequest("tests.launch.forked_role", (str(file),))
    with file.with_suffix(".log").open("wb") as log:
        socket.send_fds(ours, [request.encoded()], [log.fileno()])
    return int(orjson.loads(ours.recv(MESSAGE_BYTES))["pid"])


@pytest.mark.parametrize("dies", ["supervisor", "fork server"])
def test_a_child_that_was_not_told_to_begin_ends_with_whoever_would_tell_it(tmp_path: Path, dies: str) -> None:
    ours, server = served()
    pid = ask(ours, tmp_path / "worker")
    assert is_running(pid) and os.getpgid(pid) == pid, "it leads its group by now, which may be signalled"
    if dies == "supervisor":
        ours.close()
        assert server.wait(60) == 0
    else:
        server.kill()
        server.wait(60)
    wait_until(lambda: not is_running(pid), "the child's end")
    assert not (tmp_path / "worker").exists() and not (tmp_path / "worker.log").read_text()
    ours.close()


def test_a_signal_right_after_the_start_reaches_the_role(tmp_path: Path) -> None:
    with Supervisor(tmp_path, forked_with=IMPORTS) as roles:
        await_imports(roles)
        for number in range(10):
            role = replace(forked(tmp_path / str(number)), grace_s=600.0)
            roles.start(role)
            roles.stop(role.name)


def test_a_role_whose_guard_is_gone_is_not_done(tmp_path: Path) -> None:
    with Supervisor(tmp_path, backoff=QUICK, forked_with=IMPORTS) as roles:
        await_imports(roles)
        assert roles._guard
        roles._guard.kill()
        roles._guard.wait(60)
        with pytest.raises(RoleError, match="in a row"):
            roles.start(replace(forked(tmp_path / "learner"), ends=True))
            roles.wait(lambda: roles.done("learner"), 60, "an end that counts")
    assert not (tmp_path / "learner").exists()


def test_a_fork_server_that_hangs_hides_no_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.5)
    file = tmp_path / "worker"
    with Supervisor(tmp_path, backoff=QUICK, forked_with=IMPORTS) as roles:
        begin(roles, file)
        os.kill(server := server_of(roles), signal.SIGSTOP)
        assert kill(roles, file)["parent"] == os.getpid() and not is_running(server)


def test_a_fork_server_that_does_not_answer_begins_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.5)
    file = tmp_path / "worker"
    with Supervisor(tmp_path, forked_with=IMPORTS) as roles:
        await_imports(roles)
        os.kill(server := server_of(roles), signal.SIGSTOP)
        assert begin(roles, file)["parent"] == os.getpid() and not is_running(server)


def test_an_end_that_comes_at_once_is_heard(tmp_path: Path) -> None:
    """The codes of processes that have ended are heard even if the fork server is gone by then."""

    def spawn(command: tuple[str, ...], stdin: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, stdin=stdin)

    gone: list[int] = []
    server = ForkServer(IMPORTS, spawn, gone.append)
    wait_until(lambda: not server.importing(), "the imports")
    commands = [forked(tmp_path / str(number), "7").command for number in range(8)]
    announced: list[int] = []
    with (tmp_path / "log").open("ab") as log:
        ended = [server.fork(command, log, announced.append) for command in commands]
    assert announced == [role.pid for role in ended]
    assert [role.wait(60) for role in ended] == [7] * 8
    pid = server.pid
    assert not children_of(pid), "no zombie is left"
    server.close()
    assert not is_running(pid) and gone == [pid]
