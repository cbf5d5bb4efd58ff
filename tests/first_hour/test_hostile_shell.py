"""What a shell and a folder hold for other programs: services, Celery worker and submission do not mind it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echo_queue.cli.run import roles as run_roles
from echo_queue.config.loading import load
from echo_queue.connections.endpoints import services_dir
from tests.connections.storage.test_shell import NOBODY, OF_AWS, PROXIES
from tests.first_hour.home import Home
from tests.waiting import DEADLINE_S, wait_until

ELSEWHERE = "redis://127.0.0.1:9/0"
URLS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
OTHERS = {
    **{"CELERY_LOADER": "nowhere", "CELERY_CONFIG_MODULE": "nowhere", "CELERY_WORKER_QUEUES": "other"},
    **{"CELERY_WORKER_POOL": "nope", "CELERY_WORKDIR": "/", "DJANGO_SETTINGS_MODULE": "nowhere"},
    **{"RCLONE_READ_ONLY": "true", "RCLONE_BASEURL": "/elsewhere", "RCLONE_CONFIG": "/none"},
    **{"MPLBACKEND": "nope", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "1", "PYTHONSTARTUP": "/none"},
    **{"PYTHONSAFEPATH": "1", "HF_ENDPOINT": NOBODY, "NUMBA_DISABLE_JIT": "1"},
}


@contextmanager
def running(command: tuple[str, ...], log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


@pytest.mark.slow
def test_prompts_arrive_whatever_the_shell_and_the_folder_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path, monkeypatch)
    for name in ("learner", "redis", "celery", "boto3", "orjson", "numpy"):
        home.text(f"{name}.py", f"raise SystemExit('{name}.py was imported')\n")
    home.text("aws", "[default\n")
    for name, value in {**OF_AWS, **PROXIES, **dict.fromkeys(URLS, ELSEWHERE), **OTHERS}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "aws"))
    path = tmp_path / "run.toml"
    monkeypatch.setenv("ECHO_QUEUE_CONFIG", str(path))
    config, log = load(path), tmp_path / "celery.log"
    with running((*run_roles.ECHO_QUEUE, "services", "run.toml"), tmp_path / "services.log"):
        wait_until((services_dir(config) / "store.json").exists, "the services")
        with running(run_roles.celery(config).command, log):
            command = (*run_roles.ECHO_QUEUE, "submit", "run.toml")
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{log.read_text()}"
    assert "2 prompts" in done.stdout + done.stderr
