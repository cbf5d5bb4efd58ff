"""`echo-queue metrics` on a machine that has nothing but the configuration: printed once, and served until its end."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo_queue.cli.commands import app
from echo_queue.cli.inspect.scrape_server import Address, ScrapeServer, address_of, require_token
from echo_queue.cli.inspect.scrapes import Scrapes
from echo_queue.connections.secrets import METRICS_TOKEN
from echo_queue.errors import ConfigError, Problem, ServiceError
from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.queue import Caller
from echo_queue.queue.acl import rules
from echo_queue.reporting.figures.exposition import CONTENT_TYPE
from echo_queue.reporting.figures.table import FIGURES, UP
from tests.queue.clients import Clients
from tests.reporting.figures.parsed import eventful, parsed
from tests.source_code import ROOT, files

RUN, PASSWORD, TOKEN = "watched", "look-only", "a token of the scraper's"
LONG_S = 60.0
"""What a test never waits for."""
HERE = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis with a run of which every figure has a value."""
    users = [User("admin", "all", rules("admin", RUN, "")), User("monitor", PASSWORD, rules("monitor", RUN, ""))]
    server = RedisServer(tmp_path_factory.mktemp("redis"), users=users)
    server.start()
    with server.client() as client:
        queue = Clients(client, RUN, deadline_s=10.0)
        queue.install()
        eventful(queue)
    yield server
    server.stop()


@pytest.fixture
def config(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a machine that only looks; its `run.dir` is not there."""
    monkeypatch.setenv("ECHO_QUEUE_MONITOR_REDIS_PASSWORD", PASSWORD)
    monkeypatch.delenv(METRICS_TOKEN, raising=False)
    with server.client() as client:
        port = client.connection_pool.connection_kwargs["port"]
    path = tmp_path / "run.toml"
    redis = f'[redis]\nurl = "redis://127.0.0.1:{port}/0"\nusername = "{{role}}"\n'
    path.write_text(f'[run]\nname = "{RUN}"\ndir = "{tmp_path / "nowhere"}"\n{redis}', encoding="utf-8")
    return path


def get(url: str, token: str = "", method: str = "GET") -> tuple[int, bytes, str]:
    """Returns status, body and type of an answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=LONG_S) as got:
            return got.status, got.read(), got.headers["Content-Type"]
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read(), refused.headers["Content-Type"]


def serving(token: str | None) -> ScrapeServer:
    return ScrapeServer(HERE, token, lambda: b"figures\n")


def caller(server: RedisServer, run: str = RUN) -> Caller:
    return Caller(server.client(), run, deadline_s=0.1)


def test_all_figures_are_printed_once_without_a_folder_of_the_run(config: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["metrics", str(config)], catch_exceptions=False)
    assert done.exit_code == 0
    assert parsed(done.stdout_bytes, RUN).keys() == {figure.name for figure in FIGURES}
    assert not (tmp_path / "nowhere").exists()


def test_what_is_printed_agrees_with_status_and_audit_of_the_same_machine(config: Path) -> None:
    def asked(*words: str) -> bytes:
        return CliRunner().invoke(app, [words[0], str(config), *words[1:]], catch_exceptions=False).stdout_bytes

    found = parsed(asked("metrics"), RUN)
    status, audit = json.loads(asked("status", "--json")), json.loads(asked("audit", "--json"))
    assert found["echo_queue_identity_ok"].of() == audit["ok"]
    assert found["echo_queue_lost_entries_total"].of() == audit["lost"]
    for place in ("backlog", "tasks", "retry", "ready", "drained", "trained", "dead"):
        assert found["echo_queue_groups"].of(place=place) == status["queue"][place]
    assert found["echo_queue_idle_ratio"].of() == pytest.approx(status["recent"]["idle_share"])
    assert found["echo_queue_lag_mean_updates"].of() == pytest.approx(status["recent"]["mean_lag"])
    assert found["echo_queue_reward_mean"].of() == status["update"]["reward_mean"]
    assert found["echo_queue_evaluation_score"].of(evaluation="gsm8k") == status["evaluations"][0]["mean"]
    assert sum(found["echo_queue_dead_groups"].values.values()) == sum(one["tasks"] for one in status["dead"])
    (pool,) = status["pools"]
    assert found["echo_queue_generated_tokens_per_second"].of(pool=pool["name"]) == pool["tokens_per_s"]


@pytest.mark.slow
def test_figures_are_served_until_the_command_is_ended(config: Path) -> None:
    command = [sys.executable, "-m", "echo_queue.cli", "metrics", str(config), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", program.stderr.readline())
        status, body, kind = get(url)
        assert (status, kind) == (200, CONTENT_TYPE)
        assert parsed(body, RUN)[UP.name].of() == 1
        program.send_signal(signal.SIGTERM)
        assert program.wait(LONG_S) == 0
        assert program.stderr.read() == ""


def test_only_metrics_are_served_and_a_token_is_asked_for_if_there_is_one() -> None:
    server, guarded = serving(None), serving(TOKEN)
    try:
        at, guarded_at = f"http://{server.address}", f"http://{guarded.address}"
        assert get(f"{at}/metrics")[:2] == get(f"{at}/metrics?x=1")[:2] == (200, b"figures\n")
        assert get(f"{at}/metrics", method="HEAD") == (200, b"", CONTENT_TYPE)
        for path in ("/", "/metrics/", "/metricsx", "/status"):
            assert get(at + path)[0] == get(guarded_at + path, TOKEN)[0] == 404
        assert get(f"{at}/metrics", method="POST")[0] == 501
        for wrong in ("", "other", TOKEN + "x", TOKEN.upper()):
            assert get(f"{guarded_at}/metrics", wrong)[0] == 401
        assert get(f"{guarded_at}/metrics", TOKEN)[:2] == (200, b"figures\n")
    finally:
        server.close()
        guarded.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9477", "127.0.0.1", 9477),
        (":9477", "127.0.0.1", 9477),
        ("0.0.0.0:1", "0.0.0.0", 1),
        ("[::1]:0", "::1", 0),
        ("localhost:80", "localhost", 80),
    ],
)
def test_an_address_is_read_and_is_loopback_unless_it_says_otherwise(text: str, host: str, port: int) -> None:
    assert address_of(text) == (host, port)
    assert address_of(text).loopback == (host != "0.0.0.0")


@pytest.mark.parametrize("text", ["", "here", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", ":٣"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="names no port"):
        address_of(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "build.example.org", "127.0.0.1.example.org"])
def test_an_address_that_others_may_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError) as told:
        require_token(Address(host, 9477), None)
    assert len(told.value.problems) == 1 and METRICS_TOKEN in told.value.problems[0].what
    require_token(Address(host, 9477), TOKEN)
    require_token(Address("127.0.0.1", 9477), None)
    for place in (host, "127.0.0.1"):
        with pytest.raises(ConfigError, match="is empty"):
            require_token(Address(place, 9477), "")


def test_a_refusal_is_one_problem_and_nothing_is_served(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"{METRICS_TOKEN} is not set"):
        CliRunner().invoke(app, ["metrics", str(config), "--listen", "0.0.0.0:0"], catch_exceptions=False)
    (tmp_path / "token").write_text("\n")
    monkeypatch.setenv(f"{METRICS_TOKEN}_FILE", str(tmp_path / "token"))
    with pytest.raises(ConfigError, match="is empty"):
        CliRunner().invoke(app, ["metrics", str(config), "--listen", "0.0.0.0:0"], catch_exceptions=False)


def test_a_port_that_is_taken_is_one_clear_sentence() -> None:
    server = serving(None)
    try:
        with pytest.raises(ServiceError) as told:
            ScrapeServer(server.address, None, lambda: b"")
        (problem,) = told.value.problems
        assert problem.what == f"port {server.address.port} of 127.0.0.1 is taken by another program"
    finally:
        server.close()


def test_while_redis_is_away_a_scrape_says_so_and_afterwards_all_figures_are_there_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    with server.client() as client:
        queue = Clients(client, RUN, deadline_s=10.0)
        queue.install()
        eventful(queue)
    scrapes = Scrapes(RUN, lambda: caller(server), deadline_s=LONG_S)
    assert len(parsed(scrapes.scrape().text, RUN)) == len(FIGURES)
    server.stop()
    away = scrapes.scrape()
    assert {name: family.of() for name, family in parsed(away.text, RUN).items()} == {UP.name: 0}
    assert "Connection refused" in away.trouble
    server.start()
    try:
        assert parsed(scrapes.scrape().text, RUN)[UP.name].of() == 1
    finally:
        server.stop()


def test_a_redis_that_hangs_holds_up_no_scrape_and_only_one_thread(caplog: pytest.LogCaptureFixture) -> None:
    began, answered, asked = threading.Event(), threading.Event(), list[str]()

    def hangs() -> Caller:
        asked.append(threading.current_thread().name)
        began.set()
        answered.wait(LONG_S)
        raise ServiceError(Problem("redis.url", "has gone for good", "start it"))

    scrapes = Scrapes(RUN, hangs, deadline_s=0.01)
    for _ in range(5):
        assert parsed(scrapes.scrape().text, RUN)[UP.name].of() == 0
    assert began.wait(LONG_S) and asked == ["scrape"]
    assert len(caplog.records) == 1, "the same trouble is told once"
    answered.set()
    patient = Scrapes(RUN, hangs, deadline_s=LONG_S)
    assert patient.scrape().trouble == "redis.url: has gone for good"


def test_a_server_that_accepts_and_says_nothing_is_away(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        text = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{silent.getsockname()[1]}", config.read_text())
        config.write_text(text)
        monkeypatch.setattr("echo_queue.cli.inspect.scrapes.Scrapes.__init__.__defaults__", (0.05,))
        done = CliRunner().invoke(app, ["metrics", str(config)], catch_exceptions=False)
    assert done.exit_code == 1
    assert parsed(done.stdout_bytes, RUN)[UP.name].of() == 0


def test_a_run_that_nobody_has_begun_is_no_trouble(server: RedisServer) -> None:
    found = Scrapes("later", lambda: caller(server, "later"), deadline_s=LONG_S).scrape()
    assert {name: family.of() for name, family in parsed(found.text, "later").items()} == {UP.name: 1}
    assert found.trouble == ""


def test_no_other_command_imports_the_client_of_prometheus() -> None:
    """One of our modules imports it, which only those of this command import, which the command line imports late."""

    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in files()}

    def importers(package: str, module: str) -> set[str]:
        line = re.compile(
            rf"^ *(?:from|import) {re.escape(package)}(?:\.{module} import|.* import .*\b{module}\b)", re.M
        )
        return {file for file, text in texts.items() if line.search(text)}

    places = {file for file, text in texts.items() if re.search(r"^ *(?:from|import) prometheus_client", text, re.M)}
    places -= {"workers/engines/vllm/metrics_endpoint.py"}  # vLLM brings it, and no command imports that
    inspect = "echo_queue/cli/inspect"
    assert places == {"echo_queue/reporting/figures/exposition.py"}
    shown = {f"{inspect}/scrapes.py", f"{inspect}/scrape_server.py"}
    assert importers("echo_queue.reporting.figures", "exposition") == shown
    for module in ("scrapes", "scrape_server"):
        assert importers("echo_queue.cli.inspect", module) == {f"{inspect}/metrics.py"}
    assert importers("echo_queue.cli.inspect", "metrics") == {"echo_queue/cli/commands.py"}
    late = "    from echo_queue.cli.inspect.metrics import"
    assert all(
        line.startswith(late) for line in texts["echo_queue/cli/commands.py"].splitlines() if late.strip() in line
    )


def test_the_page_is_printed_by_a_command() -> None:
    written = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["figures"]).stdout == written


def test_an_error_of_ours_is_logged_and_the_next_scrape_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([ZeroDivisionError("a bug"), b"figures\n"])

    def scrape() -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    server = ScrapeServer(HERE, None, scrape)
    try:
        url = f"http://{server.address}/metrics"
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            get(url)
        assert get(url)[0] == 200
    finally:
        server.close()
    assert "a bug" in caplog.text
