"""Says in one line why an attempt failed.

- A reason is what a worker or the learner reported: problems of our own, each with its fix; a traceback; or a sentence.
  Its beginning may be cut off.
- The line holds the cause, whatever stands below it: a fix, notes, further lines of a message.
"""

import re

NONE_GIVEN = "no reason was given"
LINE_LENGTH, LINE_END = 300, 80
"""The length to which the line is cut, and how much of its end is kept, which says where the error was."""
FIX = "→ "
"""The sign with which a problem's fix begins (`echo_queue.errors.Problem`)."""
TRACEBACK = "Traceback"
FRAME = re.compile(r'  File "')
GROUP, MARGIN, RULE = "Exception Group Traceback", re.compile(r"^ *[|+] "), re.compile(r"^ *\+-")
PLACE = re.compile(r" \([^()]+, line \d+\)$")
"""The place in the user's code, which a worker appends to a traceback."""


def in_one_line(reason: str) -> str:
    """Returns the cause and its fix, if they fit, without the number of the attempt and the worker.

    The middle of a line that is too long is left out.
    """
    head, _, rest = reason.partition(": ")
    text = rest if head.startswith("attempt ") and " by " in head else reason
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.lstrip().startswith(FIX)]
    fixes = [line.strip() for line in lines if line.lstrip().startswith(FIX)]
    cause = _joined(_message(told))
    if not cause:
        return _cut(_joined(fixes)) or NONE_GIVEN
    if fixes and lines[-1] not in told and (place := PLACE.search(fixes[-1])):
        cause, fixes[-1] = cause + place[0], fixes[-1][: place.start()]
    whole = " ".join([cause, *fixes]) if len(fixes) == 1 else cause
    return whole if len(whole) <= LINE_LENGTH else _cut(cause)


def _message(lines: list[str]) -> list[str]:
    """Returns the lines of the message: of a traceback those below its last frame, else all."""
    if at := [number for number, line in enumerate(lines) if GROUP in line]:
        return _messages_of_group(lines[at[-1] + 1 :])
    if at := [number for number, line in enumerate(lines) if FRAME.match(line)]:
        below = lines[at[-1] + 1 :]
        return below[next((number for number, line in enumerate(below) if not line.startswith(" ")), len(below)) :]
    bare = [MARGIN.sub("", line) for line in lines if not RULE.match(line)]
    of_traceback = bare != lines or any(line.startswith((TRACEBACK, "    ")) for line in lines)
    return bare[-1:] if of_traceback else lines  # of a traceback whose frames are cut off, its end is left


def _messages_of_group(lines: list[str]) -> list[str]:
    """Returns the message of an exception group and those of its exceptions."""
    bare = [re.sub(r"^[ |+]*[|+] ?", "", line) for line in lines if not RULE.match(line)]
    return [line for line in bare if line and not line.startswith((" ", TRACEBACK))]


def _joined(lines: list[str]) -> str:
    """Joins lines by semicolons, or by a space after one that introduces the next."""
    text = "; ".join(line.strip() for line in lines)
    return text.replace(":; ", ": ")


def _cut(line: str) -> str:
    return line if len(line) <= LINE_LENGTH else f"{line[: LINE_LENGTH - LINE_END - 3]} … {line[-LINE_END:]}"
