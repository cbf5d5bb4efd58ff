"""What `benchmarks.start` makes of its starts; the starts themselves are those of `tests/pipeline`."""

from benchmarks.start import MOST_PROCESSORS, Start, summarise, targets


def test_the_verdict_is_that_of_the_medians_of_processors() -> None:
    def starts(*processors_s: float) -> list[Start]:
        return [Start(1.0, one) for one in processors_s]

    imported = summarise("imports", starts(10.0, 11.0, 50.0))
    assert imported.processors_s == 11.0
    most = MOST_PROCESSORS * imported.processors_s
    (kept,) = targets(summarise("run", starts(most - 1, most, 10 * most)), imported).values()
    (missed,) = targets(summarise("run", starts(1.0, most + 1, most + 2)), imported).values()
    assert kept and not missed
