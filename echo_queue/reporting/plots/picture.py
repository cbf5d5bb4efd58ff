"""A picture: its colours and style, what is drawn in each kind, and its way to SVG.

Of a run with more than `MOST_POINTS` updates so many are drawn, evenly spread, so that neither the page nor its making
grows with the run. Colours are drawn as placeholders (`INK` …) and then replaced by CSS variables, which matplotlib
cannot write.
"""

import functools
import hashlib
import io
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Concatenate, ParamSpec

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from echo_queue.reporting.metrics import UpdateMetrics

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Size = tuple[float, float]
P = ParamSpec("P")

INK, FAINT, BLUE, GREEN, AMBER, RED, VIOLET = (f"#0101{code:02x}" for code in range(1, 8))
VARIABLES = {INK: "ink", FAINT: "line", BLUE: "blue", GREEN: "green", AMBER: "amber", RED: "red", VIOLET: "violet"}
MOST_POINTS = 1_000
"""More than a picture of this size can show apart."""
ONE_ROW = 5
"""So many names fit into one row above a picture."""

SIZE: Size = (4.8, 2.65)
"""A picture of the page. It is small, so that its text can be read where a telephone shows it narrower still."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "echo-queue",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 8,  # the labels of both axes at the origin do not touch
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def plot(draw: Callable[Concatenate[Axes, P], None], size: Size = SIZE) -> Callable[P, str]:
    """Decorates a function that draws on axes, so that it returns the picture as SVG. `size`: in inches."""

    @functools.wraps(draw)
    def picture(*args: P.args, **kwargs: P.kwargs) -> str:
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure.subplots(), *args, **kwargs)
            return _svg(figure)

    return picture


def standalone(picture: str) -> str:
    """Returns a picture that needs no page around it: it has the report's colours, light or dark."""
    page = (files("echo_queue.reporting") / "report.html").read_text(encoding="utf-8")
    colours = page[page.index(":root") : page.index("* {")]
    return picture.replace(">", f"><style>{colours}</style>", 1)


def shown_of(updates: Sequence[UpdateMetrics] | Floats) -> Places:
    """Returns the places of the updates that are drawn: the first, the last, and at most `MOST_POINTS` in all."""
    count = len(updates)
    places: Places = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))
    return places


def draw_trend(axes: Axes, x: Floats, values: Floats, colour: str, pauses: Places | None = None) -> None:
    """Plots the value of each update as a dot, and their running mean as a line, which `pauses` interrupt."""
    shown = shown_of(values)
    means = running_mean(values, max(1, len(values) // 20))
    axes.plot(x[shown], values[shown], "o", color=colour, alpha=0.25, markersize=3.5, markeredgewidth=0)
    cuts = after_pauses(shown, np.array([], dtype=np.int64) if pauses is None else pauses)
    axes.plot(*cut_line(x[shown], means[shown], cuts), color=colour, linewidth=2)


def after_pauses(shown: Places, pauses: Places) -> Places:
    """Returns the places, among the updates that are drawn, before which there was a pause."""
    places: Places = np.unique(np.searchsorted(shown, pauses))
    return places


def cut_line(x: Floats, y: Floats, cuts: Places) -> tuple[Floats, Floats]:
    """Returns a line that is interrupted before each of the places `cuts`."""
    return np.insert(x, cuts, x[cuts]), np.insert(y, cuts, np.nan)


def legend_above(axes: Axes) -> None:
    count = len(axes.get_legend_handles_labels()[0])
    if not count:
        return
    columns = count if count <= ONE_ROW else -(-count // 2)
    axes.legend(ncols=columns, loc="lower left", bbox_to_anchor=(-0.02, 1.0), handlelength=1, columnspacing=1.4)


def _svg(figure: Figure) -> str:
    """Returns the figure as an element that scales with the page and whose ids are unique on the page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    unique = hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'id="([^"]+)"', rf'id="{unique}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{unique}-", text)
    for placeholder, name in VARIABLES.items():
        text = text.replace(placeholder, f"var(--{name})")
    return text


def running_mean(values: Floats, reach: int) -> Floats:
    """Returns the mean over the `reach` values before and after each value; at the ends, over a quarter as many."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    near = np.minimum(reach, np.maximum(reach // 4, np.minimum(places, places[::-1])))
    first, last = np.maximum(places - near, 0), np.minimum(places + near + 1, len(values))
    means: Floats = (sums[last] - sums[first]) / (last - first)
    return means


def short(value: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"
