"""Reads the numbers that another role wrote as text; no other code makes a number of such a text.

The run rules, which no worker may write, are read by `echo_queue.queue.run_rules`.

`int` and `float` take underscores, blanks, signs, the digits of every script and infinities, and as many digits as
nobody can compute with. Every text that these functions refuse raises `NoNumber`, and no other error.
"""

import re

MOST = 10**15 - 1
"""The largest whole number that is read: Lua and JSON hold it exactly."""
MOST_MS = 253_402_300_799_999
"""The last millisecond since 1970 that is a date."""
WHOLE = re.compile("[0-9]{1,15}")
DECIMAL = re.compile(r"-?[0-9]{1,19}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")


class NoNumber(ValueError):
    """The text is not a number of the form or the size that its reader expects."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(f"{text!r:.40} is no number to be read here")


def whole(text: str | bytes, most: int = MOST) -> int:
    """Reads a whole number from 0 to `most`, written in decimal digits. Raises `NoNumber`."""
    if not WHOLE.fullmatch(_ascii(text)) or int(text) > most:
        raise NoNumber(text)
    return int(text)


def finite(text: str | bytes) -> float:
    """Reads a decimal number whose size is at most `MOST`. Raises `NoNumber`."""
    if not DECIMAL.fullmatch(_ascii(text)) or not abs(float(text)) <= MOST:
        raise NoNumber(text)
    return float(text)


def _ascii(text: str | bytes) -> str:
    try:
        return text.decode("ascii") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise NoNumber(text) from None
