"""The ready-made reward functions, in the signature of the user's own."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from echo_queue.config.rewards import Format, Overlong


def overlong(settings: Overlong) -> Callable[..., list[float]]:
    """Returns DAPO's soft punishment of a length of n tokens, with L = `max_tokens` and C = `cache_tokens`.

    0 if n ≤ L − C, else −1 if n > L, else (L − C − n) / C. Source: DAPO, arXiv 2503.14476, eq. 13.
    """
    free, cache = settings.max_tokens - settings.cache_tokens, settings.cache_tokens

    def punished(token_counts: Sequence[int], **_: Any) -> list[float]:
        return [max(-1.0, min(0, free - count) / cache) for count in token_counts]

    return punished


def matches(settings: Format) -> Callable[..., list[float]]:
    """Returns 1 for a completion that the pattern matches from its beginning to its end, else 0.

    A point stands for any character, line breaks included (`re.DOTALL`).
    """
    pattern = re.compile(settings.pattern, re.DOTALL)

    def formed(completions: Sequence[Any], **_: Any) -> list[float]:
        texts = (one if isinstance(one, str) else one[-1]["content"] for one in completions)
        return [float(pattern.fullmatch(text) is not None) for text in texts]

    return formed
