"""Builds a small Qwen3-architecture model and its tokenizer, warmed up, as a normal Hugging Face folder."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from echo_queue.config import Config, ModelInit
from learner.base_model.task import Example
from learner.base_model.tokenizer import train_tokenizer
from learner.base_model.warmup import warm_up
from learner.model.weight_files import open_to_readers

TOKENIZER_EXAMPLES = 2_000


def build(config: Config, tasks: Sequence[Sequence[Example]], folder: Path, say: Callable[[str], None]) -> None:
    """Writes the model to `folder`. On one machine, the same settings and examples always make the same model.

    `tasks`: the examples of each task.
    """
    settings, seed = config.model.init, config.run.seed
    longest = config.model.max_prompt_tokens + config.model.max_new_tokens
    shown = [examples[: -(-TOKENIZER_EXAMPLES // len(tasks))] for examples in tasks]
    others = [text for example in chain(*shown) for text in (example.answer, *chain(*example.turns))]
    prompts = [[example.prompt for example in examples] for examples in shown]
    tokenizer = train_tokenizer(prompts, others, settings.vocabulary, longest)
    torch.manual_seed(seed)
    model = _untrained(settings, tokenizer, longest)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = len(tokenizer(prompts[0][0])["input_ids"])
    say(f"{parameters:,} parameters, {len(tokenizer):,} tokens; the first prompt has {tokens} of them")
    warm_up(model, tokenizer, tasks, settings, seed=seed, say=say)
    model.save_pretrained(folder)
    open_to_readers(folder)
    tokenizer.save_pretrained(folder)


def _untrained(settings: ModelInit, tokenizer: PreTrainedTokenizerFast, longest: int) -> PreTrainedModel:
    model: PreTrainedModel = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.kv_heads,
            head_dim=settings.head_dim,
            intermediate_size=settings.intermediate,
            max_position_embeddings=longest,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    return model
