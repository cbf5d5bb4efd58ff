"""Reads the solutions of mathematical prompts, the same at submission and in the environment `math`.

math-verify bounds its own work with SIGALRM, so solutions are read on the main thread of a process.
"""

import re
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

COLUMNS = ("answer", "solution")
"""The columns of a row that may hold its solution; the first that it has counts."""
DELIMITED_OR_PROSE = re.compile(r"\$|\\boxed|\\\(|\\\[|(?<!\\)\b[A-Za-z]{2,}")
PLAIN = re.compile(r"[^\\$\n]{0,40}|-?\\[dt]?frac\{-?[0-9]{1,9}\}\{[0-9]{1,9}\}")
"""What math-verify always reads if there is a digit in it: most solutions, whose reading takes milliseconds."""
DIGIT = re.compile(r"[0-9]")
LONGEST_SHOWN = 60
"""Characters of a solution in an error."""


def read_solution(text: str) -> list[Any]:
    """Parses a solution: data sets give an expression, with or without dollar signs, or prose that ends in it.

    Raises `ValueError` if math-verify finds no answer in it, or not in time.
    """
    parse = _parse()
    readings = (text, f"${text}$") if DELIMITED_OR_PROSE.search(text) else (f"${text}$", text)
    parsed: list[Any] = parse(readings[0]) or parse(readings[1])
    if not parsed:
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        raise ValueError(f"math-verify finds no answer in the solution {shown!r}")
    return parsed


@lru_cache(maxsize=1 << 16)
def require_readable(text: str) -> None:
    """Raises what `read_solution` raises. On another thread, or without math-verify, nothing is judged."""
    if PLAIN.fullmatch(text) and DIGIT.search(text):
        return
    if threading.current_thread() is threading.main_thread() and find_spec("math_verify") is not None:
        read_solution(text)


@cache
def _parse() -> Callable[[str], list[Any]]:
    import math_verify  # type: ignore[import-untyped]

    parse: Callable[[str], list[Any]] = math_verify.parse
    return parse
