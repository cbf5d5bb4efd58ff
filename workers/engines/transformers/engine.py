"""Continuous batching over transformers' causal language models.

- Each step reads the last token of every sample and draws the next: all tokens of a step are drawn by the weights that
  the step began with.
- A sample that joins is read when its first step begins: the rest of its prompt and of its partial rollout, once for
  all samples that share them.
- Sequences of different lengths are padded on the left; padding takes no position and is never attended to.
- Samples that have ended leave the batch at once, so that the longest samples run in a small batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from echo_queue.errors import ConfigError, Problem
from echo_queue.models.devices import cpu_has_bfloat16
from echo_queue.records import PartialSample, Tokens, Version
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import matches
from workers.engines import model_folder
from workers.engines.draw import draw
from workers.engines.gpu_copies import GpuCopies, pairs_by_place
from workers.engines.protocol import PROBE_THREADS, SampleKey, SampleRequest, check
from workers.engines.transformers import attention
from workers.engines.transformers.kv_cache import KeysValues, KVCache
from workers.engines.transformers.qwen3_step import Qwen3Step
from workers.engines.transformers.qwen3_step import applies as qwen3_applies
from workers.engines.transformers.rows import BatchRows, sequence

PREFILL_TOKENS = 8192
"""The most tokens read in one forward pass, padding included, unless a single sequence is longer."""


class TransformersEngine:
    """The `Engine` for any model of transformers whose layers attend, to everything before or within a window."""

    name = "transformers"

    def __init__(
        self, folder: str, version: Version, dtype: str, longest: int, stop_tokens: Sequence[int] = ()
    ) -> None:
        """Opens a model folder or hub name. `longest`: the most tokens of a prompt and its completion together.

        `stop_tokens` end a sample, as do those that the model's generation settings name.

        Raises `ConfigError` for a model that is too short for `longest`, or that has layers of another kind.
        """
        self.version = version
        self.sampled = 0
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = model_folder.open_model(folder, dtype)
        problems = list(_unfit(model.config, folder, longest))
        if problems:
            raise ConfigError(*problems)
        self._served = getattr(torch, dtype)
        """The type of the weights that are published. Where the processor has no arithmetic for it, the model holds
        and computes with the same numbers in float32."""
        slow = self._served == torch.bfloat16 and self._device.type == "cpu" and not cpu_has_bfloat16()
        held = torch.float32 if slow else self._served
        self._model: PreTrainedModel = model.to(self._device, held).eval().requires_grad_(False)  # type: ignore[arg-type]
        attention.use(self._model)
        self._model.config.output_router_logits = False  # only a loss of pre-training needs them
        self._forward = Qwen3Step(self._model, longest) if qwen3_applies(self._model) else self._plain_forward
        self._copies = GpuCopies()
        all_stops = sorted({*stop_tokens, *model_folder.stop_tokens(model)})
        self._stop_tokens = torch.tensor(all_stops, dtype=torch.long, device=self._device)
        self._waiting: list[SampleRequest] = []
        self._start_empty()

    @property
    def running(self) -> int:
        return len(self._rows) + len(self._waiting)

    def add(self, requests: Sequence[SampleRequest]) -> None:
        check(requests, {*self._rows.keys, *(request.key for request in self._waiting)})
        self._waiting += requests

    @torch.inference_mode()
    def step(self) -> Mapping[SampleKey, PartialSample]:
        for requests in _portions(self._waiting):
            self._join(requests)
        self._waiting = []
        if not len(self._rows):
            return {}
        self._cache.make_room()
        logits = self._forward(*self._rows.inputs, self._cache.mask, self._cache)
        self._cache.advance()
        tokens, logprobs = draw(logits, self._rows.uniform, self._rows.by_sampling)
        self.sampled += len(tokens)
        stops = torch.isin(tokens, self._stop_tokens)
        ended = self._rows.write(tokens, logprobs, stops)
        partials = dict(self._rows.partials(ended, stops))
        self._leave(ended)
        return partials

    @torch.inference_mode()
    def partials(self, tasks: Collection[str] | None = None) -> Mapping[SampleKey, PartialSample]:
        waiting = {one.key: one.partial_sample for one in self._waiting if tasks is None or one.key.task in tasks}
        return waiting | dict(self._rows.partials(self._rows.rows_of(tasks)))

    @torch.inference_mode()
    def abort(self, tasks: Collection[str]) -> None:
        self._waiting = [request for request in self._waiting if request.key.task not in tasks]
        self._leave(self._rows.rows_of(tasks))

    def load(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        parameters = self._model.state_dict(keep_vars=True)
        problems = list(model_folder.misfits(parameters, tensors, version, self._served))
        if problems:
            raise ConfigError(*problems)
        on_gpu, on_cpu = pairs_by_place(parameters, tensors)
        self._copies.to_gpu(on_gpu)
        with torch.no_grad():
            for parameter, tensor in on_cpu:
                parameter.copy_(tensor)
        self.version = version
        self._rows.serve(version.number)

    def weight(self, name: str) -> Tensor:
        weight: Tensor = self._model.state_dict(keep_vars=True)[name]
        return weight.detach().to(self._served if weight.is_floating_point() else weight.dtype)

    def holds(self, info: TensorInfo) -> bool:
        return matches(self.weight(info.name), info, PROBE_THREADS)

    def close(self) -> None:
        self._waiting = []
        self._start_empty()
        del self._forward, self._model

    def _start_empty(self) -> None:
        self._rows = BatchRows(self._device)
        self._cache = KVCache(self._model.config.num_hidden_layers, self._model.dtype, self._device)

    def _join(self, requests: Sequence[SampleRequest]) -> None:
        """Reads each sequence without its last token, and adds a row for it."""
        sequences = [sequence(request)[:-1] for request in requests]
        distinct = {one.tobytes(): one for one in sequences}
        number = {name: index for index, name in enumerate(distinct)}
        read = self._prefill(list(distinct.values()))
        rows = torch.tensor([number[one.tobytes()] for one in sequences], device=self._device)
        lengths = torch.tensor([len(one) for one in sequences], device=self._device)
        self._cache.join(read, rows, lengths)
        self._rows.join(requests, self.version.number)

    def _prefill(self, sequences: Sequence[Tokens]) -> list[KeysValues]:
        """Computes each layer's keys and values for the sequences, padded on the left."""
        padded, real = _pad_left(sequences, self._device)
        length = padded.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self._device).tril()
        # Padding attends to itself: the softmax of a row that attends to nothing would be NaN.
        visible = (causal & real[:, None, :]) | torch.eye(length, dtype=torch.bool, device=self._device)
        positions = (real.cumsum(-1) - 1).clamp_(min=0)
        mask = torch.zeros(visible.shape, dtype=self._model.dtype, device=self._device)
        mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        cache: Any = DynamicCache()
        self._plain_forward(padded, positions, mask.unsqueeze(1), cache)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _plain_forward(self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        """Runs the model's own forward pass on tokens, positions [R, T]. Returns the last position's logits [R, V]."""
        # The model uses a four-dimensional mask as it is; it would rebuild a two-dimensional one at every token.
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

    def _leave(self, rows: Collection[int]) -> None:
        if not rows:
            return
        if len(rows) == len(self._rows):
            self._start_empty()
            return
        holes, movers = self._rows.leave(rows)
        self._cache.leave(len(self._rows), holes, movers)
        self._cache.narrow(self._rows.widest)


def _portions(requests: Sequence[SampleRequest]) -> Iterator[list[SampleRequest]]:
    """Groups requests to be read together: similar lengths, at most `PREFILL_TOKENS`, equal sequences together."""
    sequences = sorted(((sequence(request), request) for request in requests), key=lambda pair: _order(pair[0]))
    portion: list[SampleRequest] = []
    distinct: set[bytes] = set()
    for tokens, request in sequences:
        name = tokens.tobytes()
        if portion and name not in distinct and (len(distinct) + 1) * len(tokens) > PREFILL_TOKENS:
            yield portion
            portion, distinct = [], set()
        portion.append(request)
        distinct.add(name)
    if portion:
        yield portion


def _order(tokens: Tokens) -> tuple[int, bytes]:
    return len(tokens), tokens.tobytes()


def _pad_left(sequences: Sequence[Tokens], device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns token ids [N, P] int64, and which of them are real [N, P] bool. P is at least 1, since sequences may be
    empty."""
    columns = max(1, *map(len, sequences))
    padded = np.zeros((len(sequences), columns), dtype=np.int64)
    real = np.zeros((len(sequences), columns), dtype=bool)
    for row, tokens in enumerate(sequences):
        padded[row, columns - len(tokens) :] = tokens
        real[row, columns - len(tokens) :] = True
    return torch.from_numpy(padded).to(device), torch.from_numpy(real).to(device)


def _unfit(config: PreTrainedConfig, folder: str, longest: int) -> Iterator[Problem]:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        yield Problem(
            "rollout.engine",
            f"the transformers engine has no cache for {', '.join(sorted(kinds))} layers, which {folder} has",
            "choose another engine or model",
        )
    yield from model_folder.too_short(config, longest)
