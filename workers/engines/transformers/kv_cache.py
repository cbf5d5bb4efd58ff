"""The key-value cache of the running samples, which join and leave one by one.

- Every row ends at the same column, so that a step writes one column for all rows. A shorter row is padded on its left,
  where the mask hides it; the padding is finite, since 0 times NaN would still be NaN.
- Columns that only former rows had filled are no longer read, and their memory is released when the storage moves,
  within `GROW_COLUMNS` columns.
- A row that leaves is replaced by the last one, so that rows move only when others leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

KeysValues = tuple[Tensor, Tensor]
GROW_COLUMNS = 128
SPARE_SHARE = 4
"""The storage has room for 1/4 more rows than there are; it is made smaller when more than half of it is empty."""


@dataclass
class CacheWindow:
    """The filled part of `row_capacity` rows and `capacity` columns: the first `rows`, from `start` up to `end`."""

    rows: int = 0
    start: int = 0
    end: int = 0
    row_capacity: int = 0
    capacity: int = 0

    @property
    def width(self) -> int:
        return self.end - self.start

    def has_zeros(self, rows: int, before: int) -> bool:
        """Returns whether there is room for so many rows, for `before` columns up to `end`, and for the next column."""
        return rows <= self.row_capacity and before <= self.end < self.capacity


class KVLayer(CacheLayerMixin):
    """Keys and values [row_capacity, heads, capacity, head_dim], of which `window` is filled."""

    def __init__(self, window: CacheWindow) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.window = window

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self._zeros(key_states), self._zeros(value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Writes one column, for which there must be room; returns the window with that column."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        window = self.window
        rows, end = window.rows, window.end
        self.keys[:rows, :, end : end + 1] = key_states
        self.values[:rows, :, end : end + 1] = value_states
        columns = slice(window.start, end + 1)
        return self.keys[:rows, :, columns], self.values[:rows, :, columns]

    def join(self, keys: Tensor, values: Tensor, rows: Tensor) -> None:
        """Appends `rows` [R] of [N, heads, columns, head_dim] below the window's rows, up to its last column."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        assert self.keys is not None and self.values is not None
        first, end = self.window.rows, self.window.end
        target = slice(first, first + len(rows)), slice(None), slice(end - keys.shape[2], end)
        self.keys[target] = keys.index_select(0, rows)
        self.values[target] = values.index_select(0, rows)

    def replace(self, holes: Tensor, movers: Tensor) -> None:
        """Moves the rows `movers` to `holes` (both [R])."""
        if self.keys is not None and self.values is not None:
            columns = slice(self.window.start, self.window.end)
            for storage in (self.keys[:, :, columns], self.values[:, :, columns]):
                storage[holes] = storage[movers]

    def move(self, new: CacheWindow) -> None:
        """Moves the window into a new storage, of the size and at the position that `new` says."""
        old, self.window = self.window, new
        if self.keys is not None and self.values is not None:
            self.keys = _moved(self.keys, self._zeros(self.keys), old, new)
            self.values = _moved(self.values, self._zeros(self.values), old, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.window.width + query_length, 0

    def get_seq_length(self) -> int:
        return self.window.width

    def get_max_length(self) -> int:
        return -1

    def _zeros(self, like: Tensor) -> Tensor:
        _, heads, _, head_dim = like.shape
        return like.new_zeros(self.window.row_capacity, heads, self.window.capacity, head_dim)


class KVCache(Cache):
    """The cache of all layers. A step adds `mask` to its attention scores."""

    def __init__(self, layers: int, dtype: torch.dtype, device: torch.device) -> None:
        self._window = CacheWindow()
        self._mask = torch.zeros(0, 1, 0, 1, dtype=dtype, device=device)  # laid out like one more key
        self._hidden = torch.finfo(dtype).min
        self._kv_layers = [KVLayer(self._window) for _ in range(layers)]
        super().__init__(layers=list(self._kv_layers))

    @property
    def mask(self) -> Tensor:
        """The mask [rows, 1, 1, columns], including the column that is written next."""
        window = self._window
        return self._mask[: window.rows, :, window.start : window.end + 1].transpose(2, 3)

    def join(self, read: Sequence[KeysValues], rows: Tensor, lengths: Tensor) -> None:
        """Adds rows: `rows` [R] index the sequences that were `read`, of which the last `lengths` [R] columns count.

        `read` holds each layer's keys and values [N, heads, columns, head_dim], padded on the left.
        """
        columns = read[0][0].shape[2]
        window = self._reserve(len(rows), columns)
        for layer, (keys, values) in zip(self._kv_layers, read, strict=True):
            layer.join(keys, values, rows)
        padding = torch.arange(window.end, device=rows.device) < window.end - lengths.unsqueeze(1)
        mask = self._mask[window.rows : window.rows + len(rows), 0, : window.end, 0]
        mask.zero_().masked_fill_(padding, self._hidden)
        window.rows += len(rows)
        window.start = min(window.start, window.end - columns)

    def leave(self, rows: int, holes: Tensor, movers: Tensor) -> None:
        """Moves the rows `movers` to `holes` (both [R]), then keeps the first `rows`."""
        if len(holes):
            for layer in self._kv_layers:
                layer.replace(holes, movers)
            self._mask[holes] = self._mask[movers]
        self._window.rows = rows

    def narrow(self, width: int) -> None:
        """Narrows the window to `width` columns, the length of the longest row."""
        self._window.start = self._window.end - width

    def make_room(self) -> None:
        """Makes room for the next column."""
        self._reserve(0, 0)

    def advance(self) -> None:
        """Counts the column that all layers have written."""
        self._window.end += 1

    def _reserve(self, rows: int, before: int) -> CacheWindow:
        """Makes room for so many more rows, of at most `before` columns, and for the next column of all rows."""
        old = self._window
        rows += old.rows
        if old.has_zeros(rows, before):
            return old
        end = max(before, old.width)
        enough = rows <= old.row_capacity <= 2 * rows
        row_capacity = old.row_capacity if enough else rows + rows // SPARE_SHARE
        new = self._window = CacheWindow(old.rows, end - old.width, end, row_capacity, end + GROW_COLUMNS)
        for layer in self._kv_layers:
            layer.move(new)
        mask = self._mask.new_zeros(row_capacity, 1, new.capacity, 1)
        mask[: new.rows, :, : new.start] = self._hidden
        self._mask = _moved(self._mask, mask, old, new)
        return new


def _moved(source: Tensor, target: Tensor, old: CacheWindow, new: CacheWindow) -> Tensor:
    """Copies the window from `source` to `target`, both [rows, _, columns, _]; returns `target`."""
    target[: new.rows, :, new.start : new.end] = source[: old.rows, :, old.start : old.end]
    return target
