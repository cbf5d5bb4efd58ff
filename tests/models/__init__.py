"""Public models by their `config.json`, and configurations that name one of them."""

import json
from pathlib import Path
from typing import Any

from echo_queue.config import Config
from echo_queue.models import ModelShape, shape_of

MODELS = Path(__file__).parent / "public"


def public(name: str) -> dict[str, Any]:
    """The content of a public model's config.json."""
    return json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))


def shape(name: str) -> ModelShape:
    return shape_of(public(name), name)


def config(**sections: dict[str, Any]) -> Config:
    return Config.model_validate({"run": {"name": "t", "dir": "runs/t"}} | sections)
