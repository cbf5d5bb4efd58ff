"""A run's configuration as a file."""

from collections.abc import Mapping
from typing import Any

import orjson


def written(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Settings by section. Scalars are written in JSON as in TOML."""
    lines = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{key} = {orjson.dumps(value).decode()}" for key, value in values.items())]
    return "\n".join(lines)
