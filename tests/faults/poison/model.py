"""A small model whose chat template refuses system messages, and whose tokenizer has a token that the model has not."""

from pathlib import Path

from transformers import AutoTokenizer

from tests.workers.small import save_model

BEYOND = "<beyond>"
"""The text of a token whose id is one more than the model's last."""
REFUSED = "System role not supported"
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    f"{{{{ raise_exception('{REFUSED}') }}}}"
    "{% endif %}{{ message['content'] }}\n{% endfor %}"
)


def make(folder: Path, seed: int) -> Path:
    save_model(folder, seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.add_tokens([BEYOND])
    tokenizer.save_pretrained(folder)
    return folder
