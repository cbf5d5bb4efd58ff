"""Roles here are small shell programs; the processes, locks and signals are real."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.errors import HOPELESS, DeadlineError, HopelessError
from echo_queue.launch import log_file
from echo_queue.launch.supervisor import BACKOFF, MOST_REFUSALS, Role, RoleError, RunningError, Supervisor
from tests.processes import is_running
from tests.waiting import wait_until

QUICK = replace(BACKOFF, first_pause_s=0.01)


def shell(name: str, script: str, **options: object) -> Role:
    return Role(name, ("/bin/sh", "-c", script), **options)  # type: ignore[arg-type]


def test_a_role_that_dies_is_started_again(tmp_path: Path) -> None:
    once = tmp_path / "died"
    with Supervisor(tmp_path, backoff=QUICK) as roles:
        roles.start(shell("worker", f"[ -e {once} ] || {{ touch {once}; kill -9 $$; }}; exit 0", ends=True))
        roles.wait(lambda: roles.done("worker"), 20, "the second life")
        assert roles.states()[0].deaths == 1
    assert (tmp_path / "logs" / "worker.log").read_text().count("── ") == 2


def test_a_role_that_ends_with_0_before_it_is_done_has_died(tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = f"[ -e {tmp_path}/first ] && touch {done}; touch {tmp_path}/first"
    with Supervisor(tmp_path, backoff=QUICK) as roles:
        roles.start(shell("learner", script, ends=True, is_done=done.exists))
        roles.wait(lambda: roles.done("learner"), 60, "the second life")
        assert roles.states()[0].deaths == 1
        roles.start(shell("impostor", "exit 0", ends=True, is_done=lambda: False))
        with pytest.raises(RoleError, match="impostor: ended with exit code 0 before it was done, 5 times in a row"):
            roles.wait(lambda: False, 60, "its last end")


def test_a_signal_that_is_passed_on_reaches_each_role_that_runs(tmp_path: Path) -> None:
    names = ("one", "two")
    with Supervisor(tmp_path, backoff=QUICK) as roles:
        roles.start(
            *(
                shell(name, f"trap 'exit 0' USR1; cd {tmp_path}; touch {name}; while :; do sleep 0.01; done", ends=True)
                for name in names
            )
        )
        roles.wait(lambda: all((tmp_path / name).exists() for name in names), 60, "both traps")
        roles.pass_on(signal.SIGUSR1)
        roles.wait(lambda: all(map(roles.done, names)), 60, "their ends")
        roles.pass_on(signal.SIGUSR1)


def test_a_long_log_is_set_aside_when_its_role_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "KEEP_BYTES", 100)
    for life in range(3):
        with Supervisor(tmp_path, backoff=QUICK) as roles:
            roles.start(shell("worker", f"echo life {life}; head -c 200 /dev/zero", ends=True))
            roles.wait(lambda roles=roles: roles.done("worker"), 20, "its end")  # type: ignore[misc]
    logs = {path.name: path.read_bytes() for path in (tmp_path / "logs").iterdir()}
    assert sorted(logs) == ["worker.log", "worker.old"], "two files, however often it starts"
    assert b"life 2" in logs["worker.log"] and b"life 1" in logs["worker.old"]


def test_a_role_that_keeps_dying_ends_the_run_with_its_last_lines(tmp_path: Path) -> None:
    with (
        Supervisor(tmp_path, backoff=QUICK) as roles,
        pytest.raises(RoleError, match=r"no such tensor[\s\S]*run again: it continues"),
    ):
        roles.start(shell("learner", "echo no such tensor; exit 1"))
        roles.wait(lambda: False, 20, "its end")
    assert (tmp_path / "logs" / "learner.log").read_text().splitlines().count("no such tensor") == QUICK.most_ends


def test_a_role_that_refuses_is_not_asked_often(tmp_path: Path) -> None:
    with (
        Supervisor(tmp_path, backoff=QUICK) as roles,
        pytest.raises(RoleError, match=r"cannot continue:\s+prompts.jsonl:7"),
    ):
        roles.start(shell("submit", "echo prompts.jsonl:7; exit 2", ends=True))
        roles.wait(lambda: False, 20, "its end")
    assert (tmp_path / "logs" / "submit.log").read_text().splitlines().count("prompts.jsonl:7") == MOST_REFUSALS


def test_a_role_that_says_that_another_try_is_useless_is_not_started_again(tmp_path: Path) -> None:
    with Supervisor(tmp_path, backoff=QUICK) as roles:
        roles.start(shell("learner", f"echo the first 3 prompts died; exit {HOPELESS}", ends=True))
        with pytest.raises(HopelessError, match="the first 3 prompts died"):
            roles.wait(lambda: False, 20, "its end")
        roles.tick()
        assert roles.done("learner")
    assert (tmp_path / "logs" / "learner.log").read_text().count("── ") == 1


def test_a_wait_names_what_it_waited_for(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as roles, pytest.raises(DeadlineError, match="the services"):
        roles.wait(lambda: False, 0.1, "the services")


def test_workers_end_before_servers_and_stubborn_ones_are_killed(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    say = f"trap 'echo $0 >> {ended}; exit 0' TERM; touch {tmp_path}/$0; while :; do sleep 0.05; done"
    with Supervisor(tmp_path) as roles:
        roles.start(Role("services", ("/bin/sh", "-c", say, "services"), servers=True))
        roles.start(Role("worker", ("/bin/sh", "-c", say, "worker")))
        roles.start(
            shell("stubborn", f"trap '' TERM; touch {tmp_path}/stubborn; while :; do sleep 0.05; done", grace_s=0.2)
        )
        roles.wait(lambda: all((tmp_path / name).exists() for name in ("services", "worker", "stubborn")), 20, "traps")
    assert ended.read_text().split() == ["worker", "services"]


def test_what_a_role_started_ends_with_it(tmp_path: Path) -> None:
    child = tmp_path / "child"
    with Supervisor(tmp_path) as roles:
        roles.start(shell("worker", f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; wait"))
        roles.wait(child.exists, 20, "the child")
    wait_until(lambda: not is_running(int(child.read_text())), "the child's end")


def test_a_second_supervisor_is_refused(tmp_path: Path) -> None:
    with Supervisor(tmp_path), pytest.raises(RunningError, match=str(os.getpid())) as refused:
        Supervisor(tmp_path, {"ECHO_QUEUE_CONFIG": "my.toml"}).__enter__()
    assert "`echo-queue status my.toml`" in str(refused.value)
    with Supervisor(tmp_path):
        pass


SUPERVISE = """
import sys
from pathlib import Path
from echo_queue.launch import log_file
from echo_queue.launch.supervisor import Role, Supervisor
directory = Path(sys.argv[1])
note = 'sleep 600 & echo $! > {0}.child; echo $$ > {0}.new; mv {0}.new {0}; wait'
with Supervisor(directory) as roles:
    for name in ('worker', 'services'):
        roles.start(Role(name, ('/bin/sh', '-c', note.format(directory / name)), servers=name == 'services'))
    roles.wait(lambda: False, 600, 'the kill')
"""


def test_nothing_survives_a_killed_supervisor_and_the_run_can_start_again(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", SUPERVISE, str(tmp_path)])
    names = ("worker", "worker.child", "services", "services.child")
    wait_until(lambda: all((tmp_path / name).exists() for name in names), "all four")
    pids = [int((tmp_path / name).read_text()) for name in names]
    assert all(map(is_running, pids))
    first.send_signal(signal.SIGKILL)
    first.wait()
    with Supervisor(tmp_path):
        assert not any(map(is_running, pids)), "the lock is free only once everything is gone"


def test_ctrl_c_ends_the_roles(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as roles, pytest.raises(KeyboardInterrupt):
        roles.start(shell("worker", "sleep 600"))
        roles.interrupt()
        roles.wait(lambda: False, 20, "the interrupt")
    assert not roles.states()
