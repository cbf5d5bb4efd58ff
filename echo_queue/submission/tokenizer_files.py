"""Reads what the files of a model's folder say of its tokenizer, as transformers does, which is not needed here.

Source: huggingface/transformers, `PreTrainedTokenizerBase.from_pretrained`.
"""

from pathlib import Path
from typing import Any

import orjson

from echo_queue.errors import Problem, ServiceError
from echo_queue.submission.chat_template import ChatTemplate

CONFIG, LEGACY_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE, FURTHER_TEMPLATES = "chat_template.jinja", "additional_chat_templates"
DEFAULT = "default"
"""The one of several chat templates that prompts are written with."""
NAMED_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The special tokens that a chat template may write by name."""


def chat_template_of(folder: Path) -> ChatTemplate | None:
    """Returns the chat template of the model in `folder`, or None. Raises `ServiceError` for a damaged file."""
    source = _source(folder)
    if source is None:
        return None
    return ChatTemplate(source, {name: token for name, token in special_tokens_of(folder).items() if token is not None})


def special_tokens_of(folder: Path) -> dict[str, str | None]:
    """Returns the special tokens that the files name; None for one that they say there is not.

    A name that is missing may have a default in the tokenizer's class. Raises `ServiceError` for a damaged file.
    """
    config = _json(folder / CONFIG)
    legacy = {} if "added_tokens_decoder" in config else _json(folder / LEGACY_TOKENS)
    named = config | legacy
    return {name: _token(named[name]) for name in NAMED_TOKENS if name in named}


def _source(folder: Path) -> str | None:
    """Returns the text of the default template. Files of templates stand for those in tokenizer_config.json."""
    further = sorted((folder / FURTHER_TEMPLATES).glob("*.jinja"))
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    if further:
        return next((path.read_text(encoding="utf-8") for path in further if path.stem == DEFAULT), None)
    found = _json(folder / CONFIG).get("chat_template")
    if isinstance(found, list):
        found = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
    if isinstance(found, dict):
        found = found.get(DEFAULT)
    return found if isinstance(found, str) else None


def _token(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ServiceError(Problem(str(path), f"is not JSON: {error}", "build or fetch the model again")) from None
    return content if isinstance(content, dict) else {}
