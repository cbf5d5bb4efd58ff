"""The moves of the queue as Redis Functions, and their installation: this folder's Lua files, in the order of `FILES`.

`state.lua` documents every key and lists every move with its file.
"""

from importlib.resources import files

import redis

NAME = "echo_queue_1"
FOLDER = files(__name__)
SHARED = ("state", "backlog", "worker")
"""The files whose local names the later ones use."""
FILES = (*SHARED, "learner", "peers", "lease_expiry", "operator", "monitor")


def source() -> str:
    """Returns the library's Lua text. A local function must stand before its use, hence the fixed order.

    A file whose names no other file uses is a block of its own, because Lua allows 200 local names in one.
    """
    texts = {name: (FOLDER / f"{name}.lua").read_text(encoding="utf-8") for name in FILES}
    return "\n".join(text if name in SHARED else f"do\n{text}end" for name, text in texts.items())


def load(client: "redis.Redis") -> None:
    """Loads or replaces the library. Redis persists functions with the data and sends them to replicas."""
    client.function_load(source(), replace=True)
