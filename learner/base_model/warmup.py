"""Supervised warm-up that leaves a model weak, not blank: it knows the task's format and rarely its answer.

- A share `correct` of the targets is right; the others are the right answer with its parts rearranged.
- There are few kinds of rearrangement, each likelier than the right answer, so that greedy decoding
  chooses a wrong one while sampling still finds the right one now and then: something to reinforce.
- The right order is in the data, so reinforcement learning elicits what is there, as it does after pre-training.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from echo_queue.config import ModelInit
from learner.base_model.task import Example
from learner.base_model.tokenizer import EOS

REPORT_STEPS = 50
RAMP_STEPS = 30
LAST_LR = 0.1
"""Share of the learning rate that is left at the end."""
WORDS = re.compile(r"-?\d+(?:\.\d+)?|\w+")
LETTERS = re.compile(r"\w")
IGNORED = -100


def rearranged(answer: str, others: Sequence[Example], rng: random.Random) -> str:
    """The answer's parts (words and numbers; the letters of a single word) backwards, or moved on by one either way.

    An answer of one part has no order; for it, some other prompt's answer.
    """
    pattern = WORDS if len(WORDS.findall(answer)) > 1 else LETTERS
    parts: list[str] = pattern.findall(answer)
    if len(parts) < 2:
        return rng.choice(others).answer
    moved = rng.choice((parts[::-1], parts[1:] + parts[:1], parts[-1:] + parts[:-1]))
    following = iter(moved)
    return pattern.sub(lambda _: next(following), answer)


def warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
    settings: ModelInit,
    *,
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Trains `model` in place: cross-entropy on the answers' tokens and the end-of-sequence token after each."""
    batches = _batches(tokenizer, examples, settings, random.Random(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.warmup_lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_share(step, settings.warmup_steps))
    model.train()
    for step, (tokens, targets) in zip(range(1, settings.warmup_steps + 1), batches, strict=False):
        loss = _loss(model, tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % REPORT_STEPS == 0 or step == settings.warmup_steps:
            say(f"warm-up {step}/{settings.warmup_steps}, loss {loss.item():.2f}")


def _lr_share(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / RAMP_STEPS) * max(LAST_LR, 1 - step / steps)


def _loss(model: PreTrainedModel, tokens: Tensor, targets: Tensor) -> Tensor:
    """tokens and targets [N, L], padded on the right, where causal attention never looks; targets are shifted here."""
    hidden = model.base_model(tokens).last_hidden_state[:, :-1]
    targets = targets[:, 1:]
    trained = targets != IGNORED
    head: torch.nn.Module = model.get_output_embeddings()
    return F.cross_entropy(head(hidden[trained]), targets[trained])


def _batches(
    tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], settings: ModelInit, rng: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        chosen = rng.choices(examples, k=settings.warmup_batch)
        yield _padded([_row(tokenizer, _turns(one, examples, settings.warmup_correct, rng)) for one in chosen])


def _turns(example: Example, examples: Sequence[Example], correct: float, rng: random.Random) -> list[tuple[str, str]]:
    """What is read and what is to be said, in turns."""
    right = not example.mixed or rng.random() < correct
    answer = example.answer if right else rearranged(example.answer, examples, rng)
    return [(example.prompt, answer), *example.further]


def _row(tokenizer: PreTrainedTokenizerFast, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """Tokens [L], and targets [L]: what is said, and IGNORED where it is read.

    Each part is encoded by itself, as workers encode them.
    """
    parts: list[list[int]] = tokenizer([part for read, said in turns for part in (read, said + EOS)])["input_ids"]
    tokens, targets = list[int](), list[int]()
    for read, said in zip(parts[::2], parts[1::2], strict=True):
        tokens += read + said
        targets += [IGNORED] * len(read) + said
    return tokens, targets


def _padded(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Rows of tokens and targets → both as [N, L], padded with a token that nothing looks at."""
    length = max(len(tokens) for tokens, _ in rows)
    padded, aims = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), IGNORED)
    for row, (tokens, targets) in enumerate(rows):
        padded[row, : len(tokens)] = torch.tensor(tokens)
        aims[row, : len(tokens)] = torch.tensor(targets)
    return padded, aims
