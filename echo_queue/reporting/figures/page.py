"""Writes docs/figures.md from the table."""

from collections.abc import Iterator

from echo_queue.reporting.figures.figure import Figure
from echo_queue.reporting.figures.table import SUBJECTS

HEADER = """# Figures

`echo-queue metrics CONFIG` prints these figures of a run for Prometheus, from Redis alone, as the read-only user; with
`--listen HOST:PORT` it serves them at `/metrics` ([operations](operations.md#prometheus)). Each figure has the label
`run`, the name of the run, besides those of its own. No label names a worker or a prompt: what workers write is cut,
and what is rare is one value, `other`. Seconds, bytes, and shares from 0 to 1 are the units. A figure that is not known
is left out, and is never 0 instead.

A counter only grows as long as Redis keeps the run: over restarts of any role, and over a rewind, which is told by a
counter of its own (`event="undone"`). A Redis that was set back or lost begins anew, which Prometheus takes as a reset.
A gauge says what is now, and may fall: after a rewind the version and the trained prompts do.

`echo-queue figures` writes this page from the table in `echo_queue/reporting/figures/`. Change it there.
"""


def page() -> str:
    """Returns the page with every figure, one section for each subject."""
    return HEADER + "".join(line for subject in SUBJECTS for line in _section(subject.title, subject.figures))


def _section(title: str, figures: tuple[Figure, ...]) -> Iterator[str]:
    yield f"\n## {title}\n\n"
    yield "| figure | type | labels | meaning | measured | normal | if it is not |\n"
    yield "| --- | --- | --- | --- | --- | --- | --- |\n"
    for figure in figures:
        cells = (figure.kind, ", ".join(f"`{label}`" for label in figure.labels), figure.meaning)
        told = (*cells, figure.source, figure.normal, figure.action)
        yield f"| `{figure.name}` | {' | '.join(_cell(one) for one in told)} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
