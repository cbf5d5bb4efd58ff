"""A plain batched sampling loop over transformers' causal language models.

- Each prompt is read once; its cache is then repeated for the samples of its group.
- Prompts of different lengths are padded on the left; padding takes no position and is never attended to.
- Rows that have finished leave the batch, so a long sample does not pay for the short ones.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from echo_queue.errors import ConfigError, Problem
from echo_queue.records import Finish, Tokens, Version
from workers.engines import Completion, Prompt, Sampling, checkpoint
from workers.engines.checkpoint import misfits, open_model, too_short
from workers.engines.draw import draw
from workers.engines.kv_cache import GROW_COLUMNS, KVCache
from workers.engines.qwen3_step import Qwen3Step
from workers.engines.qwen3_step import applies as qwen3_applies

DROP_SHARE = 8
"""Finished rows are dropped once they are 1/8 of the batch: the copy then pays within a few tokens."""


class TransformersEngine:
    name = "transformers"

    def __init__(self, folder: str, version: Version, dtype: str, max_tokens: int, stop_tokens: Sequence[int]) -> None:
        """`folder`: a model folder or hub name. `max_tokens`: the longest prompt plus its completion.

        Raises `ConfigError` for a model that is too short for `max_tokens` or attends otherwise than in full.
        """
        self.version = version
        self.sampled = 0
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = open_model(folder, dtype)
        problems = list(_unfit(model.config, folder, max_tokens))
        if problems:
            raise ConfigError(*problems)
        self._model: PreTrainedModel = model.to(device=self._device).eval().requires_grad_(False)  # type: ignore[call-arg]
        self._step = Qwen3Step(self._model) if qwen3_applies(self._model) else self._forward
        self._stop_tokens = torch.tensor(sorted({*stop_tokens, *checkpoint.stop_tokens(model)}), device=self._device)

    def load(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        parameters = self._model.state_dict(keep_vars=True)
        problems = list(misfits(parameters, tensors, version))
        if problems:
            raise ConfigError(*problems)
        distinct = {id(parameters[name]): name for name in tensors}
        with torch.no_grad():
            for name in distinct.values():  # one at a time: nothing is staged on the device
                parameters[name].copy_(tensors[name])
        self.version = version

    def weight(self, name: str) -> Tensor:
        weight: Tensor = self._model.state_dict(keep_vars=True)[name]
        return weight.detach()

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, stop: threading.Event
    ) -> list[list[Completion]]:
        if not prompts:
            return []
        new = sampling.max_new_tokens
        padded, real = _pad_left([prompt.tokens for prompt in prompts], self._device)
        columns = padded.shape[1]
        cache = KVCache(self._model.config.num_hidden_layers, columns + min(new, GROW_COLUMNS))
        logits = self._prefill(padded, real, cache)
        repeat = torch.arange(len(prompts), device=self._device).repeat_interleave(group_size)
        cache.select_rows(repeat)
        logits = logits[repeat]
        rows = _Rows.of(real[repeat], _uniforms(prompts, group_size, new, self._device), logits.dtype)
        samples = _Samples(len(repeat), new, self._device)
        for step in range(new):
            tokens, logprobs = draw(logits, rows.uniform[:, step], sampling.temperature, sampling.top_p)
            self.sampled += int((~rows.finished).sum())
            samples.add(step, rows, tokens, logprobs, torch.isin(tokens, self._stop_tokens))
            finished = int(rows.finished.sum())
            if finished == len(tokens) or step + 1 == new or stop.is_set():
                break
            if finished * DROP_SHARE >= len(tokens):
                keep = (~rows.finished).nonzero().squeeze(1)
                cache.select_rows(keep)
                rows, tokens = rows.select(keep), tokens[keep]
            mask = rows.mask[..., : columns + step + 1]
            logits = self._step(tokens.unsqueeze(1), rows.length.unsqueeze(1) + step, mask, cache)
        completions = samples.completions(step + 1)
        return [completions[first : first + group_size] for first in range(0, len(completions), group_size)]

    def _prefill(self, padded: Tensor, real: Tensor, cache: KVCache) -> Tensor:
        """Fills the cache with `padded` [N, P]; returns the last position's logits [N, V]."""
        length = padded.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self._device).tril()
        # Padding sees itself: the softmax of a row that sees nothing would be NaN.
        visible = (causal & real[:, None, :]) | torch.eye(length, dtype=torch.bool, device=self._device)
        positions = (real.cumsum(-1) - 1).clamp_(min=0)
        return self._forward(padded, positions, visible.unsqueeze(1), cache)

    def _forward(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: KVCache) -> Tensor:
        # A four-dimensional mask is taken as it is; a two-dimensional one would be rebuilt at every token.
        output: Any = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


@dataclass
class _Rows:
    """The samples still in the batch, one row each."""

    sample: Tensor
    """[R] which sample of the call a row is."""
    length: Tensor
    """[R] tokens of its prompt."""
    mask: Tensor
    """[R, 1, 1, columns + new tokens], added to the attention scores."""
    uniform: Tensor
    """[R, new tokens] in [0, 1): the randomness of each token."""
    finished: Tensor
    """[R] bool; a finished row may stay a while before it is dropped."""

    @classmethod
    def of(cls, real: Tensor, uniform: Tensor, dtype: torch.dtype) -> "_Rows":
        """`real` [R, columns] is false where a prompt is padded."""
        rows, columns = real.shape
        mask = torch.zeros(rows, 1, 1, columns + uniform.shape[1], dtype=dtype, device=real.device)
        mask[:, 0, 0, :columns].masked_fill_(~real, torch.finfo(dtype).min)
        finished = torch.zeros(rows, dtype=torch.bool, device=real.device)
        return cls(torch.arange(rows, device=real.device), real.sum(-1), mask, uniform, finished)

    def select(self, keep: Tensor) -> "_Rows":
        return _Rows(*(getattr(self, field.name)[keep] for field in fields(self)))


class _Samples:
    """What has been sampled so far, for all samples of the call."""

    def __init__(self, count: int, new: int, device: torch.device) -> None:
        self._tokens = torch.zeros(count, new, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(count, new, dtype=torch.float32, device=device)
        self._lengths = torch.zeros(count, dtype=torch.long, device=device)  # 0: still running

    def add(self, step: int, rows: _Rows, tokens: Tensor, logprobs: Tensor, stops: Tensor) -> None:
        """Token `step` of each row; marks the rows that stop with it. A finished row's tokens are never read."""
        self._tokens[rows.sample, step] = tokens.int()
        self._logprobs[rows.sample, step] = logprobs
        stops = stops & ~rows.finished
        self._lengths[rows.sample[stops]] = step + 1
        rows.finished |= stops

    def completions(self, steps: int) -> list[Completion]:
        unfinished: Finish = "length" if steps == self._tokens.shape[1] else "abort"
        tokens, logprobs = self._tokens.cpu().numpy(), self._logprobs.cpu().numpy()
        return [
            Completion(
                tokens[row, : length or steps].copy(),
                logprobs[row, : length or steps].copy(),
                "stop" if length else unfinished,
            )
            for row, length in enumerate(self._lengths.tolist())
        ]


def _pad_left(prompts: Sequence[Tokens], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids [N, P] int64, and where they are real [N, P] bool."""
    columns = max(len(prompt) for prompt in prompts)
    padded = np.zeros((len(prompts), columns), dtype=np.int64)
    real = np.zeros((len(prompts), columns), dtype=bool)
    for row, prompt in enumerate(prompts):
        padded[row, columns - len(prompt) :] = prompt
        real[row, columns - len(prompt) :] = True
    return torch.from_numpy(padded).to(device), torch.from_numpy(real).to(device)


def _uniforms(prompts: Sequence[Prompt], group_size: int, new: int, device: torch.device) -> Tensor:
    """[N × group_size, new] float64 in [0, 1), each group's from its own seed, whatever the device."""
    generator = torch.Generator()
    seeded = (generator.manual_seed(prompt.seed) for prompt in prompts)
    draws = [torch.rand(group_size, new, dtype=torch.float64, generator=group) for group in seeded]
    return torch.cat(draws).to(device)


def _unfit(config: PreTrainedConfig, folder: str, max_tokens: int) -> Iterator[Problem]:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    kinds -= {"sliding_attention"} if window is None or window >= max_tokens else set()
    if kinds:
        yield Problem(
            "rollout.engine",
            f"transformers keeps full attention only; {folder} has {', '.join(sorted(kinds))} layers",
            "choose another engine or model",
        )
    yield from too_short(config, max_tokens)
