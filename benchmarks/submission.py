"""The time until a prompt set is admissible: JSONL file → Celery chunk tasks → shards → backlog.

Everything is real and on this machine: embedded Redis (fsync on each write) and S3 server, one Celery worker with two
processes, and `echo-queue submit` as a process of its own. Times run from the start of that process. The baseline sends
one Celery message per prompt through the same broker and settings, whose task appends its prompt to a Redis stream. It
is measured on a sample, sending and working at the same time, and extrapolated in proportion.

    python -m benchmarks.submission [--prompts 1000000] [--sample 20000] [--json]
"""

import argparse
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.verdict import print_verdict
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_redis
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.launch.servers.serving import Services
from echo_queue.queue import Caller, Operator, RunRules, SubmitterQueue

if TYPE_CHECKING:
    import redis
    from celery import Celery

ROW_BYTES = 200
PROCESSES = 2
TARGET_FIRST_S, TARGET_ALL_S = 5.0, 60.0
DEADLINE_S = 600.0
POLL_S = 0.02
EACH = "benchmarks.submission.each"


@dataclass(frozen=True)
class Figures:
    prompts: int
    first_s: float
    """Seconds until the first prompts were admissible."""
    all_s: float
    submitter_mb: float
    """Largest resident set of the submitting process."""
    celery_mb: float
    """Largest resident set of any process of the Celery worker."""
    baseline_sample: int
    baseline_sample_s: float
    baseline_all_s: float
    ratio: float
    """Baseline time over ours."""


def measure(prompts: int, sample: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="echo-queue-submission-") as name, _services(Path(name)) as path:
        config, source = load(path), Path(name) / "prompts.jsonl"
        write_prompts(source, prompts)
        first_s, all_s, submitter_mb, celery_mb = ours(config, path, source, prompts)
        baseline_s = baseline(config, path, source, sample)
    whole_s = baseline_s * prompts / sample
    return Figures(prompts, first_s, all_s, submitter_mb, celery_mb, sample, baseline_s, whole_s, whole_s / all_s)


def write_prompts(path: Path, count: int) -> None:
    """Writes lines of `ROW_BYTES` each, line end included."""
    with path.open("wb", buffering=1 << 20) as file:
        for index in range(count):
            start = orjson.dumps({"answer": str(index), "prompt": f"Question {index}: "})[:-2]
            file.write(start.ljust(ROW_BYTES - 3, b"x") + b'"}\n')


def ours(config: Config, path: Path, source: Path, prompts: int) -> tuple[float, float, float, float]:
    """Returns seconds to the first and to all prompts, and peak megabytes of the submitter and the Celery processes."""
    caller = Caller(connect_redis(config, "admin"), config.run.name)
    submitter_queue = SubmitterQueue(caller)
    with _celery("echo_queue.submission", path) as celery:
        begun = time.monotonic()
        command = [sys.executable, "-m", "echo_queue.cli", "submit", str(path), str(source)]
        submitter = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        first_s, peak_mb = 0.0, 0.0
        while submitter.poll() is None:
            peak_mb = max(peak_mb, _peak_mb(submitter.pid))
            arrival = submitter_queue.submission_counts(config.prompts.set)
            if arrival and arrival.count and not first_s:
                first_s = time.monotonic() - begun
            if arrival and arrival.settled:
                break
            _within(begun, "the prompts")
            time.sleep(POLL_S)
        all_s = time.monotonic() - begun
        celery_mb = max(map(_peak_mb, _processes_of(celery.pid)))
        if submitter.wait(timeout=DEADLINE_S) != 0:
            raise SystemExit("submitting failed")
    audit = Operator(caller).audit()
    if not audit.ok or audit.submitted != prompts:
        raise SystemExit(f"the benchmark lost prompts: {audit}")
    return first_s, all_s, peak_mb, celery_mb


def baseline(config: Config, path: Path, source: Path, sample: int) -> float:
    """Returns the seconds to send `sample` prompts as one message each until all are in a stream."""
    application, client = _baseline_application(config), connect_redis(config, "admin")
    with source.open("rb") as file:
        rows = [orjson.loads(next(file)) for _ in range(sample)]
    with _celery("benchmarks.submission", path):
        begun = time.monotonic()
        sender = threading.Thread(target=_send_each, args=(application, rows))
        sender.start()
        while client.xlen(_stream(config)) < sample:
            _within(begun, "the baseline")
            time.sleep(POLL_S)
        took_s = time.monotonic() - begun
        sender.join()
    return took_s


def _send_each(application: "Celery", rows: list[dict[str, str]]) -> None:
    with application.producer_pool.acquire(block=True) as producer:
        for row in rows:
            application.send_task(EACH, kwargs=row, producer=producer)


def _baseline_application(config: Config) -> "Celery":
    from celery import Celery

    from echo_queue.submission.celery.app import settings

    application = Celery("baseline", set_as_current=False)
    application.conf.update(settings(config))

    @functools.cache
    def client(process: int) -> "redis.Redis":
        return connect_redis(config, "admin")

    def each(prompt: str, answer: str) -> None:
        client(os.getpid()).xadd(_stream(config), {"prompt": prompt, "answer": answer})

    application.task(each, name=EACH)
    return application


def _stream(config: Config) -> str:
    return CELERY_PREFIX.format(run=config.run.name) + "baseline"


def __getattr__(name: str) -> Any:
    """Makes `app`, for `celery -A benchmarks.submission worker`, which serves the baseline."""
    if name != "app":
        raise AttributeError(name)
    return _baseline_application(load(Path(os.environ["ECHO_QUEUE_CONFIG"])))


@contextmanager
def _services(directory: Path) -> Iterator[Path]:
    """Starts embedded services and sets a run's rules; yields the run's TOML file."""
    path = directory / "run.toml"
    path.write_text(f'[run]\nname = "submission"\ndir = "{directory}"\n')
    config = load(path)
    services = Services(config)
    services.start()
    try:
        with connect_redis(config, "admin") as client:
            Operator(Caller(client, config.run.name)).configure(RunRules(s=4, batch=16))
        yield path
    finally:
        services.stop()


@contextmanager
def _celery(application: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Yields a Celery worker that is ready, in a session of its own."""
    command = [sys.executable, "-m", "celery", "-A", application, "worker", "-c", str(PROCESSES), "-l", "INFO"]
    environ = os.environ | {"ECHO_QUEUE_CONFIG": str(path)}
    log = path.with_name(f"{application}.log")
    with log.open("w") as output:
        worker = subprocess.Popen(command, env=environ, start_new_session=True, stdout=output, stderr=output, text=True)
    begun = time.monotonic()
    try:
        while " ready." not in log.read_text():
            if worker.poll() is not None:
                raise SystemExit(log.read_text())
            _within(begun, "the Celery worker")
            time.sleep(POLL_S)
        yield worker
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def _within(begun: float, what: str) -> None:
    if time.monotonic() - begun > DEADLINE_S:
        raise SystemExit(f"waited {DEADLINE_S:.0f} s for {what}")


def _processes_of(session: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.getsid(int(entry.name)) == session:
                    yield int(entry.name)
            except ProcessLookupError:
                continue


def _peak_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.prompts, options.sample)
    if options.json:
        targets = {
            f"the first within {TARGET_FIRST_S:.0f} s": figures.first_s <= TARGET_FIRST_S,
            f"all within {TARGET_ALL_S:.0f} s": figures.all_s <= TARGET_ALL_S,
        }
        print_verdict(figures, targets)
        return
    print(f"{figures.prompts:,} prompts of {ROW_BYTES} bytes, {PROCESSES} Celery processes")
    print(f"  first admissible  {figures.first_s:8.1f} s   (target {TARGET_FIRST_S:.0f} s)")
    print(f"  all admissible    {figures.all_s:8.1f} s   (target {TARGET_ALL_S:.0f} s)")
    print(f"  peak memory       {figures.submitter_mb:8.0f} MB submitter, {figures.celery_mb:.0f} MB a Celery process")
    sample = f"{figures.baseline_sample:,} took {figures.baseline_sample_s:.1f} s"
    print(f"  baseline          {figures.baseline_all_s:8.1f} s   one message per prompt ({sample})")
    print(f"  ratio             {figures.ratio:8.1f} ×")


if __name__ == "__main__":
    main()
