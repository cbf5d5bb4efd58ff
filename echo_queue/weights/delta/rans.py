"""Codes the gaps and values of changes with a range variant of asymmetric numeral systems (Duda, arXiv:1311.2540).

- A number is a symbol, its two highest bits and their place, and the extra bits below these, which are not compressed.
- Symbols are coded by tables of frequencies that add up to 4,096. Changes come in runs, and each has its own tables.
- Gaps and values have a coder each, so that a processor works on two symbols at a time.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo_queue.weights.delta import varints
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.gaps import Numbers
from echo_queue.weights.delta.streams import Bytes, MalformedStream
from echo_queue.weights.delta.varints import BROKEN

Words = NDArray[np.uint16]
Wide = NDArray[np.uint64]

SYMBOLS = 128
SCALE_BITS = 12
SCALE = 1 << SCALE_BITS
"""The sum of the frequencies in a table."""
LEAST_STATE = 1 << 16
"""A coder's state lies between this and 2^32; below it, another word of 16 bits is read."""
RUN, MOST_RUNS = 2048, 64
"""The number of changes for which a pair of tables pays, and the largest number of such pairs."""

WIDTHS: Bytes = np.array([max(0, symbol // 2 - 1) for symbol in range(SYMBOLS)], np.uint8)
"""A symbol → the number of its extra bits."""
LEAST: Wide = np.array([s if s < 2 else (2 | (s & 1)) << (s // 2 - 1) for s in range(SYMBOLS)], np.uint64)
"""A symbol → the least number that it stands for."""
SMALL: Bytes = np.array([np.searchsorted(LEAST, number, "right") - 1 for number in range(1024)], np.uint8)
"""A small number → its symbol."""


class Coded(NamedTuple):
    """Streams: the tables, the words of the gaps' coder and of the values' coder, and the extra bits."""

    tables: Bytes
    gaps: Bytes
    values: Bytes
    extra: Bytes


class _Tables(NamedTuple):
    """`lengths`: the number of changes in each run. `gaps`, `values`: frequencies by run and symbol."""

    lengths: NDArray[np.int64]
    gaps: Numbers
    values: Numbers


def write(gaps: Numbers, values: Wide) -> Coded:
    """Codes at least one change; gaps and values are below 2^28 and 2^64."""
    count = len(gaps)
    ends = np.linspace(0, count, 1 + min(MOST_RUNS, -(-count // RUN))).astype(np.int64)
    gap_symbols, value_symbols = np.empty(count, np.uint8), np.empty(count, np.uint8)
    wide_gaps = gaps.astype(np.uint64)
    _write_symbols(wide_gaps, gap_symbols)
    _write_symbols(values, value_symbols)
    widest = int(WIDTHS[gap_symbols.max()]) + int(WIDTHS[value_symbols.max()])
    extra = np.zeros(count * widest // 64 + 2, np.uint64)
    bits = _write_extra(wide_gaps, values, gap_symbols, value_symbols, extra)
    tables = _Tables(np.diff(ends), _frequencies(gap_symbols, ends), _frequencies(value_symbols, ends))
    return Coded(
        _write_tables(tables),
        _write_words(gap_symbols, tables.lengths, tables.gaps),
        _write_words(value_symbols, tables.lengths, tables.values),
        extra.view(np.uint8)[: (bits + 7) // 8],
    )


def read(coded: Coded, count: int, gap_bits: int, value_bits: int) -> tuple[Numbers, Wide]:
    """Returns the gaps and values of `count` changes, below 2^`gap_bits` and 2^`value_bits`.

    Raises `MalformedStream`.
    """
    tables = _read_tables(coded.tables, count, (2 * gap_bits, 2 * value_bits))
    extra = np.zeros(len(coded.extra) // 8 + 2, np.uint64)
    extra.view(np.uint8)[: len(coded.extra)] = coded.extra
    gaps, values = np.empty(count, np.uint32), np.empty(count, np.uint64)
    words = _words(coded.gaps), _words(coded.values)
    used = _read_changes(tables, words, extra, U(8 * len(coded.extra)), (gaps, values))
    if used == BROKEN or (used + 7) // 8 != len(coded.extra) or int(extra[used // 64]) >> used % 64:
        raise MalformedStream(f"the words or extra bits are not those of {count} changes")
    return gaps, values


def _frequencies(symbols: Bytes, ends: NDArray[np.int64]) -> Numbers:
    """Returns each run's table: frequencies that are not 0 where a symbol occurs, and add up to `SCALE`."""
    tables = np.zeros((len(ends) - 1, SYMBOLS), np.int64)
    _scale(symbols, ends, tables)
    return tables.astype(np.uint32)


def _write_tables(tables: _Tables) -> Bytes:
    numbers: list[int] = []
    for length, *both in zip(tables.lengths.tolist(), tables.gaps, tables.values, strict=True):
        numbers.append(length)
        for table in both:
            used = int(np.flatnonzero(table)[-1]) + 1
            numbers += [used, *table[:used].tolist()]
    return varints.write(np.array(numbers, np.uint32))


def _read_tables(stream: Bytes, count: int, most: tuple[int, int]) -> _Tables:
    """Reads the runs of `count` changes; `most`: the number of symbols for gaps and for values."""
    numbers, at = varints.read(stream), 0
    lengths: list[int] = []
    tables: tuple[list[Numbers], list[Numbers]] = ([], [])
    while at < len(numbers) and len(lengths) < MOST_RUNS:
        lengths.append(int(numbers[at]))
        at += 1
        for kept, symbols in zip(tables, most, strict=True):
            used = int(numbers[at]) if at < len(numbers) else 0
            table = np.zeros(SYMBOLS, np.uint32)
            listed = numbers[at + 1 : at + 1 + used]
            if not 1 <= used <= symbols or len(listed) < used or listed.sum(dtype=np.int64) != SCALE or not listed[-1]:
                raise MalformedStream("a table of frequencies is cut short, too long, or has another sum than 4,096")
            table[:used] = listed
            kept.append(table)
            at += 1 + used
    if at != len(numbers) or sum(lengths) != count or 0 in lengths:
        raise MalformedStream(f"the runs are not those of {count} changes")
    return _Tables(np.array(lengths, np.int64), np.array(tables[0]), np.array(tables[1]))


def _write_words(symbols: Bytes, lengths: NDArray[np.int64], tables: Numbers) -> Bytes:
    words = np.empty(len(symbols) + 2, np.uint16)
    return words[_encode(symbols, lengths, tables, words) :].view(np.uint8)


def _words(stream: Bytes) -> Words:
    if len(stream) < 4 or len(stream) % 2:
        raise MalformedStream("a coder's words are cut short")
    words = np.frombuffer(stream.tobytes(), "<u2")
    if not words[1]:
        raise MalformedStream(f"a coder begins with a state below {LEAST_STATE}")
    return words


@compiled
def _write_symbols(numbers: Wide, symbols: Bytes) -> None:
    for place in range(U(len(numbers))):
        number = numbers[place]
        if number < U(1024):
            symbols[place] = SMALL[number]
        else:
            octave = U(10)
            while number >> octave > U(1):
                octave += U(1)
            symbols[place] = U(2) * octave + ((number >> (octave - U(1))) & U(1))


@compiled
def _write_extra(gaps: Wide, values: Wide, gap_symbols: Bytes, value_symbols: Bytes, extra: Wide) -> int:
    """Fills `extra`, which must be zeros, with a word to spare; returns the number of bits."""
    bit = U(0)
    for place in range(U(len(gaps))):
        for numbers, symbols in ((gaps, gap_symbols), (values, value_symbols)):
            symbol = symbols[place]
            rest, at, shift = numbers[place] - LEAST[symbol], bit >> U(6), bit & U(63)
            extra[at] |= rest << shift
            extra[at + U(1)] |= (rest >> U(1)) >> (U(63) - shift)
            bit += U(WIDTHS[symbol])
    return int(bit)


@compiled
def _scale(symbols: Bytes, ends: NDArray[np.int64], tables: NDArray[np.int64]) -> None:
    """Counts each run's symbols in its table, which must be zeros, and scales the counts."""
    for run in range(len(tables)):
        table, start, end = tables[run], ends[run], ends[run + 1]
        for place in range(U(start), U(end)):
            table[symbols[place]] += 1
        for symbol in range(U(SYMBOLS)):
            if table[symbol]:
                table[symbol] = max(1, table[symbol] * SCALE // (end - start))
        over = table.sum() - SCALE
        while over:  # the largest takes what rounding has left, and keeps at least half
            largest = table.argmax()
            change = min(over, table[largest] // 2)
            table[largest] -= change
            over -= change


@compiled
def _encode(symbols: Bytes, lengths: NDArray[np.int64], tables: Numbers, words: Words) -> int:
    """Fills `words` from its end, because what is coded last is read first; returns where they begin."""
    state, at, place = U(LEAST_STATE), U(len(words)), U(len(symbols))
    starts = np.zeros(SYMBOLS, np.uint64)
    for run in range(len(lengths) - 1, -1, -1):
        table = tables[run]
        for above in range(U(1), U(SYMBOLS)):
            starts[above] = starts[above - U(1)] + U(table[above - U(1)])
        for _ in range(lengths[run]):
            place -= U(1)
            symbol = U(symbols[place])
            frequency = U(table[symbol])
            if state >= frequency << U(32 - SCALE_BITS):
                at -= U(1)
                words[at] = state & U(0xFFFF)
                state >>= U(16)
            state = ((state // frequency) << U(SCALE_BITS)) + state % frequency + starts[symbol]
    at -= U(2)
    words[at], words[at + U(1)] = state & U(0xFFFF), state >> U(16)
    return int(at)


@compiled
def _fill(table: Numbers, symbols: Bytes, starts: Wide) -> None:
    """Fills in the symbol of each of the 4,096 slots, and each symbol's first slot."""
    slot = U(0)
    for symbol in range(U(SYMBOLS)):
        starts[symbol] = slot
        for _ in range(U(table[symbol])):
            symbols[slot] = symbol
            slot += U(1)


@compiled
def _take(extra: Wide, bit: U, width: U) -> U:
    """Returns `width` bits, at most 62, from `bit` on; `extra` has a word behind them."""
    at, shift = bit >> U(6), bit & U(63)
    both = (extra[at] >> shift) | ((extra[at + U(1)] << U(1)) << (U(63) - shift))
    return U(both & ((U(1) << width) - U(1)))


@compiled
def _read_changes(
    tables: _Tables, words: tuple[Words, Words], extra: Wide, bits: U, made: tuple[Numbers, Wide]
) -> np.int64:
    """Fills `gaps` and `values`; returns the number of extra bits read, or `BROKEN` if the words do not end with them.

    Tables must be full. `extra` must have a word more than its `bits` need.
    """
    (gap_words, value_words), (gaps, values), bit, place = words, made, U(0), U(0)
    gap_at, value_at = U(2), U(2)
    gap_state = U(gap_words[0]) | (U(gap_words[1]) << U(16))
    value_state = U(value_words[0]) | (U(value_words[1]) << U(16))
    gap_slots, value_slots = np.empty(SCALE, np.uint8), np.empty(SCALE, np.uint8)
    gap_starts, value_starts = np.empty(SYMBOLS, np.uint64), np.empty(SYMBOLS, np.uint64)
    for run in range(len(tables.lengths)):
        gap_table, value_table = tables.gaps[run], tables.values[run]
        _fill(gap_table, gap_slots, gap_starts)
        _fill(value_table, value_slots, value_starts)
        for _ in range(tables.lengths[run]):
            gap_slot, value_slot = gap_state & U(SCALE - 1), value_state & U(SCALE - 1)
            gap, value = U(gap_slots[gap_slot]), U(value_slots[value_slot])
            gap_state = U(gap_table[gap]) * (gap_state >> U(SCALE_BITS)) + gap_slot - gap_starts[gap]
            value_state = U(value_table[value]) * (value_state >> U(SCALE_BITS)) + value_slot - value_starts[value]
            if gap_state < U(LEAST_STATE):
                if gap_at == U(len(gap_words)):
                    return BROKEN
                gap_state = (gap_state << U(16)) | U(gap_words[gap_at])
                gap_at += U(1)
            if value_state < U(LEAST_STATE):
                if value_at == U(len(value_words)):
                    return BROKEN
                value_state = (value_state << U(16)) | U(value_words[value_at])
                value_at += U(1)
            gap_width, value_width = U(WIDTHS[gap]), U(WIDTHS[value])
            if bit + gap_width + value_width > bits:
                return BROKEN
            gaps[place] = LEAST[gap] + _take(extra, bit, gap_width)
            values[place] = LEAST[value] + _take(extra, bit + gap_width, value_width)
            bit += gap_width + value_width
            place += U(1)
    whole = gap_at == U(len(gap_words)) and value_at == U(len(value_words))
    return np.int64(bit) if whole and gap_state == value_state == U(LEAST_STATE) else BROKEN
