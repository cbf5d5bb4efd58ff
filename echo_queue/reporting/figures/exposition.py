"""Prints the figures in Prometheus' text format, with the official client. Nothing else imports that package."""

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from echo_queue.reporting.figures.figure import RUN, Figure, Reading, Values
from echo_queue.reporting.figures.table import FIGURES, UP

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The format that every Prometheus reads, and that `generate_latest` writes."""


class RunFigures(Collector):
    """The figures of a run; without a reading, whether it could be asked is all that there is to say."""

    def __init__(self, run: str, reading: Reading | None, *, up: bool) -> None:
        self._run, self._reading, self._up = run, reading, up

    def collect(self) -> Iterator[Metric]:
        yield self._family(UP, {(): float(self._up)})
        if self._reading is None:
            return
        for figure in FIGURES:
            if figure is not UP and (values := figure.values(self._reading)):
                yield self._family(figure, values)

    def _family(self, figure: Figure, values: Values) -> Metric:
        make = GaugeMetricFamily if figure.kind == "gauge" else CounterMetricFamily
        family = make(figure.name, figure.meaning, labels=[RUN, *figure.labels])
        for labels, value in values.items():
            family.add_metric([self._run, *labels], value)
        return family


def text(run: str, reading: Reading | None, *, up: bool = True) -> bytes:
    """Returns the figures of run `run`. `reading`: None if there is none; `up`: whether Redis answered."""
    return generate_latest(RunFigures(run, reading, up=up))
