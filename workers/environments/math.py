"""Mathematical answers, compared by math-verify: 1.0 if equal to the row's `answer` (or `solution`), else 0.0.

math-verify bounds its own work with SIGALRM, so it must run on the main thread of its process, as it does in the
scorer's process. A completion that it cannot parse in time is a wrong answer; a solution that it cannot parse is an
error.
"""

import re
from typing import Any

from echo_queue.errors import ConfigError, Problem
from workers.environments.protocol import ScoringRequest

COLUMNS = ("answer", "solution")
DELIMITED_OR_PROSE = re.compile(r"\$|\\boxed|\\\(|\\\[|(?<!\\)\b[A-Za-z]{2,}")


class Math:
    def __init__(self) -> None:
        try:
            import math_verify  # type: ignore[import-untyped]
        except ImportError:
            fix = "pip install 'echo-queue[environments]'"
            raise ConfigError(Problem("environment.kind", "math needs the math-verify package here", fix)) from None
        self._parse, self._verify = math_verify.parse, math_verify.verify

    def score(self, request: ScoringRequest) -> list[float]:
        column = next((name for name in COLUMNS if name in request.columns), None)
        if column is None:
            raise KeyError(f"needs a column {' or '.join(COLUMNS)}; the prompt has {sorted(request.columns)}")
        solution = self._solution(str(request.columns[column]))
        return [float(self._verify(solution, self._parse(completion))) for completion in request.completions]

    def _solution(self, text: str) -> list[Any]:
        """Parses a solution: data sets give an expression, with or without dollar signs, or prose that ends in it."""
        readings = (text, f"${text}$") if DELIMITED_OR_PROSE.search(text) else (f"${text}$", text)
        parsed: list[Any] = self._parse(readings[0]) or self._parse(readings[1])
        if not parsed:
            raise ValueError(f"math-verify finds no answer in the solution {text!r}")
        return parsed
