"""A new user's folder: a configuration, prompts, a reward function and a model, in which nothing is wrong yet."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

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


class Home:
    """The folder in which the command is given, and its environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._environment = pytest.MonkeyPatch()
        monkeypatch.chdir(folder)
        (folder / "model").mkdir()
        self._write()

    def mend(self) -> None:
        """Undoes every mistake."""
        self._environment.undo()
        if (self.folder / "runs").is_file():
            self.remove("runs")
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

    def set(self, **values: str) -> None:
        """Sets variables: `section__key`, or a secret's name."""
        for name, value in values.items():
            self._environment.setenv(f"ECHO_QUEUE_{name.upper()}", value)
