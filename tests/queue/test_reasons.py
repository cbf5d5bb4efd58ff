"""The line in which a person reads why a prompt died."""

import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest

from echo_queue.errors import EchoQueueError, Problem, PromptError
from echo_queue.queue.reasons import LINE_LENGTH, in_one_line

OURS = PromptError(Problem("a/0/7", "the observed ranges do not rise", "check the worker that made it"))
TWO = PromptError(Problem("a.jsonl:1", "has no prompt", "name it"), Problem("a.jsonl:2", "is no JSON", "mend it"))


def raised(action: Callable[[], object]) -> str:
    """Returns the traceback of what the action raises."""
    try:
        action()
    except Exception as error:
        return "".join(traceback.format_exception(error)).rstrip()
    raise AssertionError("it raised nothing")


def of(error: Exception) -> str:
    def action() -> None:
        raise error

    return raised(action)


def chained() -> None:
    try:
        {}["answer"]
    except KeyError as error:
        raise ValueError("no answer") from error


def noted() -> None:
    error = KeyError("answer")
    error.add_note("the row was 7")
    error.add_note("")
    raise error


def nested() -> None:
    inner = ExceptionGroup("inner", [KeyError("b"), TypeError("c")])
    raise ExceptionGroup("two", [ValueError("a"), inner])


def unsaid() -> None:
    assert not sys.argv


def in_another_process() -> None:
    program = [sys.executable, "-c", "import sys; sys.exit(7)"]
    subprocess.run(program, check=True, capture_output=True, timeout=30)


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        (str(OURS), "a/0/7: the observed ranges do not rise → check the worker that made it"),
        (str(TWO), "a.jsonl:1: has no prompt; a.jsonl:2: is no JSON"),
        (
            of(OURS),
            "echo_queue.errors.PromptError: a/0/7: the observed ranges do not rise → check the worker that made it",
        ),
        (of(OURS) + " (rewards.py, line 3)", "do not rise (rewards.py, line 3) → check the worker that made it"),
        (of(KeyError("answer")), "KeyError: 'answer'"),
        (of(KeyError()), "KeyError"),
        (raised(unsaid), "AssertionError"),
        (raised(chained), "ValueError: no answer"),
        (raised(noted), "KeyError: 'answer'; the row was 7"),
        (of(ValueError("two lines:\n  the second\n\n")), "ValueError: two lines: the second"),
        (of(ValueError("\nbelow")), "ValueError: below"),
        (of(ValueError("")), "ValueError"),
        (raised(nested), "ExceptionGroup: two (2 sub-exceptions); ValueError: a; ExceptionGroup: inner"),
        (raised(in_another_process), "returned non-zero exit status 7."),
        (raised(lambda: compile("x = = 1", "own.py", "exec")), "SyntaxError: invalid syntax"),
        ("    return row['answer']\nKeyError: 'answer'", "KeyError: 'answer'"),
        ("  |     return row['b']\n  | KeyError: 'b'\n  +------------------------------------", "KeyError: 'b'"),
        ("too long\nsaid twice", "too long; said twice"),
        ("", "no reason was given"),
        ("\n  \n", "no reason was given"),
        ("    → mend it", "→ mend it"),
    ],
)
def test_the_line_says_the_cause(reason: str, line: str) -> None:
    said = in_one_line(f"attempt 3 by w1: {reason}")
    assert line in said and "\n" not in said and "Traceback" not in said
    assert said == in_one_line(reason)


def test_a_cause_that_is_too_long_is_cut_and_keeps_no_fix() -> None:
    said = in_one_line(str(EchoQueueError(Problem("here", "x" * 9_000 + " at the end", "mend it"))))
    assert len(said) == LINE_LENGTH and said.startswith("here: xx") and said.endswith("x at the end")
