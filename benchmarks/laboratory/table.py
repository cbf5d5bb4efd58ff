"""The benchmark's output for people: each figure on a line, as soon as it is known."""

from typing import TextIO

from benchmarks.laboratory.figures import Late, Series, Uploaded

HEADING = (
    "                        peers  T_last/(F/B)  (least … most, rounds)  first  origin/F"
    "  busy  busiest node  all nodes  RSS MB  wrong parts\n"
)


class Table:
    """The table on `stream`; without one, nothing is printed."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if self._stream:
            self._stream.write(text)
            self._stream.flush()

    def show(self, each: Series) -> Series:
        self.write(
            f"  {each.what:<22}{each.nodes:5}  {each.ratio!s:<37}{each.first.median:6.3f}{each.origin.median:10.3f}"
            f"{each.busy.median:6.0%}{each.cpu_share:14.0%}{each.cores:11.2f}{each.rss_mb:8.0f}{each.wrong_parts:13}\n"
        )
        return each

    def show_late(self, late: Late) -> Late:
        first, origin = f"{late.arrived.median:6.3f}", f"{late.origin.median:10.3f}"
        self.write(f"  {'late joiner':<22}{late.peers:5}  {late.ratio!s:<37}{first}{origin}{late.wrong_parts:52}\n")
        self.write(
            f"    serves {late.megabytes:g} MB, anchor and skip delta, after so long; the others, who had missed as "
        )
        self.write(f"many versions, after {late.catching_up.median:.2f} s\n")
        return late

    def show_uploaded(self, each: Uploaded) -> Uploaded:
        origin, behind = f"{each.origin.median:10.3f}", each.behind
        self.write(f"  {each.what:<22}{each.peers:5}  {each.ratio!s:<37}{'':6}{origin}{each.wrong_parts:52}\n")
        self.write(f"    after publish() was called for {each.megabytes:g} MB; after the pointer had moved: {behind}\n")
        return each
