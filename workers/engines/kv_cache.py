"""A key-value cache that is written in place, grows in steps, and can repeat and drop rows.

transformers' own dynamic cache copies everything at each token; this one copies when it grows or changes rows.
"""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

GROW_COLUMNS = 128


class KVLayer(CacheLayerMixin):
    """Keys and values [rows, heads, capacity, head_dim], of which the first `length` columns are filled."""

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self._room(key_states), self._room(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[2]
        if end > self.capacity:
            self.capacity = end + GROW_COLUMNS
            self._move(*self._filled())
        assert self.keys is not None and self.values is not None
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self._filled()

    def select_rows(self, rows: Tensor) -> None:
        """Keeps `rows` ([R] indices; a repeated index repeats its row)."""
        keys, values = self._filled()
        self._move(keys.index_select(0, rows), values.index_select(0, rows))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def _filled(self) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def _move(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = self._room(keys), self._room(values)
        self.keys[:, :, : self.length] = keys
        self.values[:, :, : self.length] = values

    def _room(self, like: Tensor) -> Tensor:
        rows, heads, _, head_dim = like.shape
        return like.new_empty(rows, heads, self.capacity, head_dim)


class KVCache(Cache):
    def __init__(self, layers: int, capacity: int) -> None:
        self._kv_layers = [KVLayer(capacity) for _ in range(layers)]
        super().__init__(layers=list(self._kv_layers))

    def select_rows(self, rows: Tensor) -> None:
        for layer in self._kv_layers:
            layer.select_rows(rows)
