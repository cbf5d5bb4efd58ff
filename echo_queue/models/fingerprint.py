"""A fingerprint of a base model's files, by which machines notice that theirs differ, without reading gigabytes.

It covers the configuration and, of each file of weights, the name, the size, the header and `SAMPLES` pieces. Models
that were trained differently differ in nearly every piece; a single damaged byte elsewhere is not noticed.
"""

from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from echo_queue.config import Config
from echo_queue.models.config_file import FILE
from echo_queue.models.hub import base_folder
from echo_queue.models.weight_files import weight_files

SAMPLES, SAMPLE_BYTES = 16, 64 << 10
MOST_HEADER_BYTES = 100_000_000
"""The longest header that safetensors reads; the length in a damaged file may be any."""


def fingerprint(config: Config) -> str:
    """Returns the fingerprint of the run's base model, which is downloaded if need be; or why there is none."""
    try:
        folder = base_folder(config)
        digest = blake3((Path(folder) / FILE).read_bytes())
        files = sorted(weight_files(folder))
    except OSError as error:
        return f"none: {str(error).splitlines()[0]}"
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        for piece in _pieces(file):
            digest.update(piece)
    return digest.hexdigest(16)


def _pieces(file: Path) -> Iterator[bytes]:
    """Yields the header, and pieces at equal distances from the first byte after it to the last one of the file."""
    with file.open("rb") as data:
        length = int.from_bytes(data.read(8), "little")
        yield data.read(min(length, MOST_HEADER_BYTES))
        last = max(8 + length, file.stat().st_size - SAMPLE_BYTES)
        for number in range(SAMPLES):
            data.seek(8 + length + (last - 8 - length) * number // (SAMPLES - 1))
            yield data.read(SAMPLE_BYTES)
