"""A small random Qwen3 with a trained tokenizer, in a folder: 2 layers, head_dim 32."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SENTENCES = ["What is the sum of 1 and 2? The answer is 3.", "7 + 5 = 12", "yes no maybe"] * 3


TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def save_model(folder: Path, seed: int, chat: bool = False, stop: bool = True, template: str = TEMPLATE) -> Path:
    """`stop` False: no token ends a sample. `chat`: the tokenizer gets `template` as its chat template."""
    tokenizer = _train_tokenizer(stop)
    if chat:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def _train_tokenizer(stop: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>" if stop else None)
