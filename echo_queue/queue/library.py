"""Brings the queue's functions into a server. What is loaded is exactly the files of `library/`, in this order."""

from importlib.resources import files

import redis

NAME = "echo_queue_1"
FOLDER = files("echo_queue.queue") / "library"
FILES = ("state", "backlog", "worker", "learner", "peers", "operator")


def source() -> str:
    """The library's Lua text. Local functions must stand before their use, hence the fixed order."""
    return "\n".join((FOLDER / f"{name}.lua").read_text(encoding="utf-8") for name in FILES)


def load(client: "redis.Redis") -> None:
    """Loads or replaces the library. Functions persist with the data and reach replicas."""
    client.function_load(source(), replace=True)
