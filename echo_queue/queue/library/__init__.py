"""The moves of the queue as Redis Functions, and their installation: this folder's Lua files, in the order of `FILES`.

`state.lua` documents every key. Each file registers its own moves at its end; docs/architecture.md says what each does.
"""

from importlib.resources import files

import redis

NAME = "echo_queue_1"
FOLDER = files(__name__)
SHARED = ("state", "curriculum", "mixture", "backlog", "worker", "cancellation")
"""Files whose local functions later files use, hence in this order."""
ALONE = (
    "submission",
    "leasing",
    "completion",
    "partials",
    "learner",
    "evaluation",
    "peers",
    "lease_expiry",
    "operator",
    "fleet",
    "monitor",
)
"""Files in blocks of their own, because Lua allows 200 local names at a time."""
FILES = (*SHARED, *ALONE)


def source() -> str:
    """Returns the library's Lua text. A local function must stand before its use."""
    return "\n".join([*map(_text, SHARED), *(f"do\n{_text(name)}end\n" for name in ALONE)])


def _text(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def load(client: "redis.Redis") -> None:
    """Loads or replaces the library. Redis persists functions with the data and sends them to replicas."""
    client.function_load(source(), replace=True)
