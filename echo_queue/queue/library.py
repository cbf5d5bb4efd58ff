"""Loads the queue's functions into a Redis server: exactly the files of `library/`, in the order of `FILES`."""

from importlib.resources import files

import redis

NAME = "echo_queue_1"
FOLDER = files("echo_queue.queue") / "library"
FILES = ("state", "backlog", "worker", "learner", "peers", "operator")


def source() -> str:
    """Returns the library's Lua text. Local functions must stand before their use, hence the fixed order."""
    return "\n".join((FOLDER / f"{name}.lua").read_text(encoding="utf-8") for name in FILES)


def load(client: "redis.Redis") -> None:
    """Loads or replaces the library. Redis persists functions with the data and sends them to replicas."""
    client.function_load(source(), replace=True)
