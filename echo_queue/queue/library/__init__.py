"""The moves of the queue as Redis Functions, and their installation: this folder's Lua files, in the order of `FILES`.

`state.lua` documents every key and lists every move with its file.
"""

from importlib.resources import files

import redis

NAME = "echo_queue_1"
FOLDER = files(__name__)
FILES = ("state", "backlog", "partials", "worker", "learner", "peers", "lease_expiry", "operator", "monitor")


def source() -> str:
    """Returns the library's Lua text. A local function must stand before its use, hence the fixed order."""
    return "\n".join((FOLDER / f"{name}.lua").read_text(encoding="utf-8") for name in FILES)


def load(client: "redis.Redis") -> None:
    """Loads or replaces the library. Redis persists functions with the data and sends them to replicas."""
    client.function_load(source(), replace=True)
