"""The benchmark's output for people: each figure on a line, as soon as it is known."""

from benchmarks.laboratory.figures import Late, Series, Uploaded

HEADING = (
    "                        peers  T_last/(F/B)  (least … most, rounds)  first  origin/F"
    "  busy  busiest node  all nodes  RSS MB  wrong parts\n"
)


def write(text: str) -> None:
    print(text, end="", flush=True)


def show(each: Series) -> Series:
    write(
        f"  {each.what:<22}{each.nodes:5}  {each.ratio!s:<37}{each.first.median:6.3f}{each.origin.median:10.3f}"
        f"{each.busy.median:6.0%}{each.cpu_share:14.0%}{each.cores:11.2f}{each.rss_mb:8.0f}{each.wrong_parts:13}\n"
    )
    return each


def show_late(late: Late) -> Late:
    first, origin = f"{late.arrived.median:6.3f}", f"{late.origin.median:10.3f}"
    write(f"  {'late joiner':<22}{late.peers:5}  {late.ratio!s:<37}{first}{origin}{late.wrong_parts:52}\n")
    write(f"    serves {late.megabytes:g} MB, anchor and skip delta, after so long; the others, who had missed as ")
    write(f"many versions, after {late.catching_up.median:.2f} s\n")
    return late


def show_uploaded(each: Uploaded) -> Uploaded:
    origin, behind = f"{each.origin.median:10.3f}", each.behind
    write(f"  {each.what:<22}{each.peers:5}  {each.ratio!s:<37}{'':6}{origin}{each.wrong_parts:52}\n")
    write(f"    after publish() was called for {each.megabytes:g} MB; after the pointer had moved: {behind}\n")
    return each
