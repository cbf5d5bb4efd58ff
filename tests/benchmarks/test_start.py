"""What `benchmarks.start` makes of its starts; the starts themselves are those of `tests/pipeline`."""

from benchmarks.start import Start, summarise, targets


def test_the_verdict_is_that_of_the_medians_of_processors() -> None:
    def starts(*processors_s: float) -> list[Start]:
        return [Start(1.0, one) for one in processors_s]

    alone = summarise("without", starts(10.0, 11.0, 50.0))
    assert alone.processors_s == 11.0
    (kept,) = targets(summarise("with", starts(9.0, 9.5, 99.0)), alone).values()
    (missed,) = targets(summarise("with", starts(9.9, 10.0, 10.1)), alone).values()
    assert kept and not missed
