"""Supervised warm-up that leaves a model weak, not untrained: it knows the task's format and rarely its answer.

- A share `correct` of the targets is right; the others are the right answer with its parts rearranged.
- There are few kinds of rearrangement, each likelier than the right answer, so that greedy decoding chooses a wrong
  answer while sampling still finds the right one now and then, which leaves something to reinforce.
- The right order is in the data, so reinforcement learning elicits what the model has seen, as after pre-training.
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
LAST_LR_SHARE = 0.1
"""Share of the learning rate that remains at the last step."""
WORDS = re.compile(r"-?\d+(?:\.\d+)?|\w+")
LETTERS = re.compile(r"\w")
IGNORED = -100


def rearranged(answer: str, others: Sequence[Example], rng: random.Random) -> str:
    """Returns the answer with its parts reversed, or rotated by one place in either direction.

    Parts are words and numbers, or the letters of a single word. An answer of one part has no order: for it, the answer
    of some other prompt is returned.
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
    tasks: Sequence[Sequence[Example]],
    settings: ModelInit,
    *,
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Trains `model` in place: cross-entropy on the answers' tokens and the end-of-sequence token after each.

    `tasks`: the examples of each task. Every batch mixes those of all.
    """
    batches = _batches(tokenizer, tasks, settings, random.Random(seed))
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
    return min(1.0, (step + 1) / RAMP_STEPS) * max(LAST_LR_SHARE, 1 - step / steps)


def _loss(model: PreTrainedModel, tokens: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean cross-entropy of tokens and targets [N, L], which are shifted here.

    Both are padded on the right, where causal attention never looks.
    """
    hidden = model.base_model(tokens).last_hidden_state[:, :-1]
    targets = targets[:, 1:]
    trained = targets != IGNORED
    head: torch.nn.Module = model.get_output_embeddings()
    return F.cross_entropy(head(hidden[trained]), targets[trained])


def _batches(
    tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Sequence[Example]], settings: ModelInit, rng: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    known = [(example, examples) for examples in tasks for example in examples]
    while True:
        chosen = rng.choices(known, k=settings.warmup_batch)
        turns = (_turns(example, task, settings.warmup_correct, rng) for example, task in chosen)
        yield _padded([_row(tokenizer, one) for one in turns])


def _turns(example: Example, examples: Sequence[Example], correct: float, rng: random.Random) -> list[tuple[str, str]]:
    """Returns pairs of a text that the model reads and the text that it should answer, turn by turn.

    `examples`: those of the same task.
    """
    right = not example.may_be_wrong or rng.random() < correct
    answer = example.answer if right else rearranged(example.answer, examples, rng)
    return [(example.prompt, answer), *example.turns]


def _row(tokenizer: PreTrainedTokenizerFast, turns: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """Returns tokens [L], and targets [L]: the answers' tokens, and IGNORED for the texts that the model reads.

    Each part is encoded by itself, as workers encode them.
    """
    parts: list[list[int]] = tokenizer([part for text, answer in turns for part in (text, answer + EOS)])["input_ids"]
    tokens, targets = list[int](), list[int]()
    for text, answer in zip(parts[::2], parts[1::2], strict=True):
        tokens += text + answer
        targets += [IGNORED] * len(text) + answer
    return tokens, targets


def _padded(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Returns rows of tokens and of targets as two tensors [N, L], padded with a token that nothing attends to."""
    length = max(len(tokens) for tokens, _ in rows)
    padded, padded_targets = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), IGNORED)
    for row, (tokens, targets) in enumerate(rows):
        padded[row, : len(tokens)] = torch.tensor(tokens)
        padded_targets[row, : len(tokens)] = torch.tensor(targets)
    return padded, padded_targets
