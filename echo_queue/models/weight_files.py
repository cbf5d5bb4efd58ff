"""The safetensors files of a model's folder, by the names that transformers gives them."""

from pathlib import Path

import orjson

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The file of a model that has one, and the list of the files of a larger one."""


def weight_files(folder: str) -> list[Path]:
    """Returns the files of weights in a model's folder. Raises `OSError` if there are none."""
    single, index = Path(folder, SINGLE), Path(folder, INDEX)
    if single.is_file():
        return [single]
    if not index.is_file():
        raise OSError("it has no safetensors files")
    return [Path(folder, name) for name in sorted(set(orjson.loads(index.read_bytes())["weight_map"].values()))]
