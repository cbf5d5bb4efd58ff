"""The part cache: only verified chunks, within its limit, and nothing left of dead workers."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from echo_queue.errors import ServiceError
from echo_queue.records import Version
from echo_queue.weights.manifest import Part, Route
from tests.launch.servers.conftest import small_disk  # noqa: F401
from tests.workers.weights.peer_harness import CHUNK, DEADLINE_S, part_of, random_parts
from workers.weights.cache.cache_folder import LOCK
from workers.weights.cache.part_cache import PartCache
from workers.weights.cache.part_file import PartFile

MB = 1 << 20


@pytest.fixture
def part_cache(tmp_path: Path) -> PartCache:
    return PartCache(tmp_path / "w1", MB)


def numbered(part: Part, number: int) -> Part:
    """Returns the same part in another route."""
    key = part.key.replace("00000007", f"{number:08}")
    return Part(key, part.size, part.chunk_bytes, part.chunks)


def bytes_of(file: PartFile, count: int) -> bytes:
    with file.opened() as opened:
        return os.pread(opened, count, 0)


def fill(part_cache: PartCache, part: Part, data: bytes) -> None:
    file = part_cache.open(part)
    for index in range(len(part.chunks)):
        assert file.write(index, data[part.start(index) : part.start(index) + part.length(index)])


def test_a_chunk_that_is_not_the_published_one_leaves_no_trace(part_cache: PartCache) -> None:
    (data,) = random_parts(3)
    part = part_of(data)
    file = part_cache.open(part)
    for wrong in (data[1 : CHUNK + 1], data[: CHUNK - 1], b"", data[: CHUNK + 1], data[CHUNK : 2 * CHUNK]):
        assert not file.write(0, wrong)
    assert file.landed(0) == 0 and bytes_of(file, part.size) == bytes(part.size)
    assert file.write(0, data[:CHUNK]) and file.next == 1
    assert not file.write(0, data[CHUNK : 2 * CHUNK])
    assert bytes_of(file, CHUNK) == data[:CHUNK]


def test_chunks_may_land_in_any_order(part_cache: PartCache) -> None:
    (data,) = random_parts(4)
    part = part_of(data)
    file = part_cache.open(part)
    for index, following in ((2, 0), (0, 1), (3, 1), (1, 4)):
        assert file.write(index, data[part.start(index) : part.start(index) + part.length(index)])
        assert file.next == following
    assert file.memory() == data and file.whole


def test_what_is_not_whole_cannot_be_read(part_cache: PartCache) -> None:
    (data,) = random_parts(2)
    file = part_cache.open(part_of(data))
    file.write(1, data[CHUNK:])
    with pytest.raises(ServiceError, match="chunk 0 of 2 is missing"):
        file.memory()


def test_who_waits_for_a_chunk_wakes_when_it_lands_when_nobody_fetches_it_and_at_its_deadline(
    part_cache: PartCache,
) -> None:
    (data,) = random_parts(2)
    file = part_cache.open(part_of(data))
    assert file.wait(0, 60.0) == 0  # nobody fetches it
    file.expect(True)
    began = time.monotonic()
    assert file.wait(0, 0.1) == 0 and time.monotonic() - began >= 0.1
    threading.Timer(0.1, file.write, (0, data[:CHUNK])).start()
    assert file.wait(0, 60.0) == 1
    threading.Timer(0.1, file.expect, (False,)).start()
    assert file.wait(1, 60.0) == 1


def test_the_routes_used_longest_ago_make_room(tmp_path: Path) -> None:
    (data,) = random_parts(8)
    part_cache = PartCache(tmp_path / "w1", 3 * len(data))
    parts = [numbered(part_of(data), number) for number in range(5)]
    for part in parts[:3]:
        fill(part_cache, part, data)
    assert part_cache.find(parts[0].key)
    part_cache.open(parts[3])
    assert [part_cache.find(part.key) is not None for part in parts] == [True, False, True, True, False]
    assert part_cache.bytes == 3 * len(data)
    assert len(list(part_cache.folder.glob("*.part"))) == 3


def test_a_route_that_is_held_or_being_fetched_stays(tmp_path: Path) -> None:
    (data,) = random_parts(8)
    part_cache = PartCache(tmp_path / "w1", 2 * len(data))
    held, fetched, third = (numbered(part_of(data), number) for number in range(3))
    route = Route("run", Version(1, 0), None, "0" * 64, None, (held,))
    with part_cache.hold(route):
        fill(part_cache, held, data)
        part_cache.open(fetched).expect(True)
        with pytest.raises(ServiceError, match=r"weights\.cache_max_bytes"):
            part_cache.open(third)
        assert part_cache.open(held).memory() == data
    part_cache.open(third)
    assert part_cache.find(held.key) is None


def test_who_has_a_part_open_keeps_it_when_it_is_dropped(tmp_path: Path) -> None:
    (data,) = random_parts(8)
    part_cache = PartCache(tmp_path / "w1", len(data))
    first, second = (numbered(part_of(data), number) for number in range(2))
    fill(part_cache, first, data)
    memory = part_cache.open(first).memory()
    part_cache.open(second)
    assert part_cache.find(first.key) is None
    part_cache.close()
    assert memory == data


def test_files_are_closed_with_their_last_user(tmp_path: Path) -> None:
    (data,) = random_parts(2)
    part_cache = PartCache(tmp_path / "w1", len(data))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        fill(part_cache, numbered(part_of(data), number), data)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


MANY = """
import os, resource, sys
from pathlib import Path
from tests.workers.weights.peer_harness import part_of
from workers.weights.cache.part_cache import PartCache
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
part_cache = PartCache(Path(sys.argv[1]), 300_000)
parts = [part_of(number.to_bytes(1000, "big")) for number in range(600)]
files = []
for part in parts:
    files.append(part_cache.open(part))
    if len(files) == 300:  # all that fit, in one route, and each in use
        for number, file in enumerate(files):
            assert file.write(0, number.to_bytes(1000, "big"))
        kept = files[7]
        files = [file.memory()[999] for file in files[:5]]
        break
print(len(list(part_cache.folder.glob("*.part"))), *files, len(os.listdir("/proc/self/fd")) < 16)
part_cache.close()
assert kept.memory()[999] == 7
"""


@pytest.mark.slow
def test_there_may_be_more_parts_than_files_may_be_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY, str(tmp_path / "w1")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "300 0 1 2 3 4 True\n"), done.stderr


def test_what_is_sent_goes_on_when_its_part_is_dropped(tmp_path: Path) -> None:
    (data,) = random_parts(2)
    part_cache = PartCache(tmp_path / "w1", len(data))
    fill(part_cache, part_of(data), data)
    file = part_cache.open(part_of(data))
    with file.opened() as opened:
        part_cache.open(numbered(part_of(data), 8))
        assert part_cache.find(part_of(data).key) is None
        assert os.pread(opened, len(data), 0) == data
    assert bytes_of(file, len(data)) == data


def test_a_part_that_somebody_deleted_is_made_anew(part_cache: PartCache) -> None:
    (data,) = random_parts(2)
    fill(part_cache, part_of(data), data)
    next(part_cache.folder.glob("*.part")).unlink()
    fill(part_cache, part_of(data), data)
    assert part_cache.open(part_of(data)).memory() == data


def test_a_cache_is_wiped_at_its_start_and_removed_at_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "w1"
    folder.mkdir()
    (folder / LOCK).touch()
    (folder / "000001.part").write_bytes(b"of an earlier life")
    part_cache = PartCache(folder, MB)
    assert not list(folder.glob("*.part"))
    part_cache.open(part_of(b"something"))
    part_cache.close()
    part_cache.close()
    assert not folder.exists()
    with pytest.raises(ServiceError, match="closed"):
        part_cache.open(part_of(b"something"))


def test_two_living_workers_cannot_share_a_cache(part_cache: PartCache) -> None:
    with pytest.raises(ServiceError, match="belongs to another process that is running"):
        PartCache(part_cache.folder, MB)


@pytest.mark.parametrize("name", ["..", "."])
def test_a_worker_whose_name_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "part_cache").mkdir()
    (tmp_path / "precious").write_text("something else")
    with pytest.raises(ServiceError):
        PartCache(tmp_path / "part_cache" / name / ".." if name == "." else tmp_path / "part_cache" / name, MB)
    assert (tmp_path / "precious").exists()


HOLDER = """
import sys
from pathlib import Path
from tests.workers.weights.peer_harness import part_of
from workers.weights.cache.part_cache import PartCache
part_cache = PartCache(Path(sys.argv[1]), 1 << 20)
part_cache.open(part_of(b"something"))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_caches_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    names = ("dead", "alive")
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in names
    ]
    try:
        for holder in holders:
            assert holder.stdout is not None and holder.stdout.readline() == b"ready\n"
        (tmp_path / "somebody's").mkdir()
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait(timeout=DEADLINE_S)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["alive", "dead", "somebody's"]
        PartCache(tmp_path / "w1", MB)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["alive", "somebody's", "w1"]
    finally:
        for holder in holders:
            holder.kill()
            holder.wait(timeout=DEADLINE_S)


def test_a_folder_of_others_beside_the_cache_is_never_touched(tmp_path: Path) -> None:
    for lock in ("lock", "LOCK", "000001.part"):
        (tmp_path / f"with {lock}").mkdir()
        (tmp_path / f"with {lock}" / lock).touch()
        (tmp_path / f"with {lock}" / "precious.db").write_text("theirs")
    before = sorted(tmp_path.rglob("*"))
    PartCache(tmp_path / "w1", MB).close()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_is_no_cache_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("lock", "000001.part", "notes.txt"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("theirs")
        with pytest.raises(ServiceError, match=rf"weights\.cache_dir.*{name}.*no part cache"):
            PartCache(tmp_path / name, MB)
        assert [path.name for path in (tmp_path / name).iterdir()] == [name]


def test_what_others_put_into_a_cache_outlives_it(tmp_path: Path) -> None:
    for folder in (tmp_path / "dead", tmp_path / "w1"):
        folder.mkdir()
        (folder / LOCK).touch()
        (folder / "000001.part").write_bytes(b"of an earlier life")
        (folder / "notes.txt").write_text("theirs")
        (folder / "000002.part").mkdir()
    part_cache = PartCache(tmp_path / "w1", MB)
    part_cache.open(part_of(b"something"))
    part_cache.close()
    for folder in (tmp_path / "dead", tmp_path / "w1"):
        assert sorted(path.name for path in folder.iterdir()) == [LOCK, "000002.part", "notes.txt"]
    PartCache(tmp_path / "w1", MB).close()


FILLER = """
import resource, sys
from pathlib import Path
from echo_queue.errors import ServiceError
from tests.workers.weights.peer_harness import part_of
from workers.weights.cache.part_cache import PartCache
part_cache = PartCache(Path(sys.argv[1]), 1 << 30)
if sys.argv[2] == "quota":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    part_cache.open(part_of(bytes(2 << 20)))
except ServiceError as error:
    assert part_cache.bytes == 0 and not list(part_cache.folder.glob("*.part"))
    part_cache.open(part_of(bytes(1000)))
    print(error.problems[0].where, error.problems[0].what)
"""


def test_old_routes_make_room_on_a_full_disk_also_for_what_has_its_place(
    small_disk: Path,  # noqa: F811
) -> None:
    part_cache, data = PartCache(small_disk / "w1", 1 << 40), os.urandom(7 * MB)
    parts = [numbered(part_of(data), number) for number in range(6)]
    for part in parts[:4]:  # three fit
        fill(part_cache, part, data)
    assert [part_cache.find(part.key) is not None for part in parts] == [False, True, True, True, False, False]
    route = Route("run", Version(1, 0), None, "0" * 64, None, (parts[3],))
    with part_cache.hold(route):
        file = part_cache.open(parts[4])
        (small_disk / "somebody's").write_bytes(bytes(5 * MB))
        fill(part_cache, parts[4], data)
        assert [part_cache.find(part.key) is not None for part in parts] == [False, False, False, True, True, False]
        file.expect(True)
        with pytest.raises(ServiceError, match=r"weights\.cache_dir.*no room"):
            part_cache.open(parts[5])
        assert part_cache.open(parts[3]).memory() == data and file.memory() == data


@pytest.mark.parametrize("how", ["quota", "disk"])
def test_a_full_disk_is_one_clear_error_before_the_first_byte(tmp_path: Path, how: str) -> None:
    if how == "disk":
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
        if os.geteuid() != 0 or subprocess.run(mount, check=False, timeout=10, capture_output=True).returncode != 0:
            pytest.skip("only root can mount a small disk")
    try:
        command = [sys.executable, "-c", FILLER, str(tmp_path / "w1"), how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    finally:
        if how == "disk":
            subprocess.run(["umount", str(tmp_path)], check=True, timeout=10)
    assert done.stdout.startswith("weights.cache_dir") and "no room for 2097152 bytes" in done.stdout, done.stderr
