"""What a program can print where the terminal knows few characters, or nobody reads any more."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from echo_queue.launch.streams import always_writable, reader_is_gone
always_writable()
always_writable()
print("\\u2713 reward \\u2192 1", flush=True)
print("\\u2717 no reward", file=sys.stderr, flush=True)
for _ in range(int(sys.argv[2])):
    print("line" * 1000, flush=True)
    print("line" * 1000, file=sys.stderr, flush=True)
sys.stdout.buffer.write(b"bytes\\n")
with open(os.devnull) as file:
    Path(sys.argv[1]).write_text(f"lived to its end, {reader_is_gone()}, {file.fileno() > 2}")
"""
ASCII = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "POSIX"}


def command(told: Path, lines: int = 0) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(told), str(lines)]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict", "utf-8"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_character_that_the_encoding_lacks_is_written_as_an_escape(
    tmp_path: Path, encoding: str, unbuffered: str
) -> None:
    environ = {**os.environ, **ASCII, "PYTHONIOENCODING": encoding, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command(tmp_path / "told"), env=environ, capture_output=True, timeout=60, check=True)
    out, err = ("✓ reward → 1", "✗ no reward")
    if encoding != "utf-8":
        out, err = (text.encode("ascii", "backslashreplace").decode() for text in (out, err))
    assert done.stdout.decode().splitlines() == [out, "bytes"]
    assert done.stderr.decode().splitlines() == [err]


def pipe_without_a_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def end_of_a_closed_terminal() -> int:
    terminal, end = pty.openpty()
    os.close(terminal)
    return end


@pytest.mark.parametrize(("gone", "lines"), [(pipe_without_a_reader, 100), (end_of_a_closed_terminal, 3)])
def test_a_program_outlives_whoever_reads_its_output(tmp_path: Path, gone: Callable[[], int], lines: int) -> None:
    output = gone()
    done = subprocess.run(command(tmp_path / "told", lines), stdout=output, stderr=output, timeout=60, check=False)
    os.close(output)
    assert done.returncode == 0
    assert (tmp_path / "told").read_text() == "lived to its end, True, True"


def test_no_file_takes_the_number_of_a_stream_that_was_closed(tmp_path: Path) -> None:
    words = ["/bin/sh", "-c", '"$@" 0<&- 1>&- 2>&-', "sh", *command(tmp_path / "told")]
    subprocess.run(words, timeout=60, check=True)
    assert (tmp_path / "told").read_text() == "lived to its end, False, True"


def test_a_command_says_everything_on_a_terminal_of_few_characters() -> None:
    words = [sys.executable, "-m", "echo_queue.cli", "config", "check", "absent.toml"]
    done = subprocess.run(words, env=os.environ | ASCII, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2 and b"\\u2717" in done.stderr and b"Traceback" not in done.stderr


def test_a_command_ends_as_it_would_where_nobody_reads_its_list_to_the_end() -> None:
    words = ["/bin/bash", "-c", 'set -o pipefail; "$@" | head -1', "bash"]
    listing = [sys.executable, "-m", "echo_queue.cli", "config", "reference"]
    done = subprocess.run([*words, *listing], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
