"""Numbers in words: things in the singular or the plural, with the verb that goes with them; large ones; durations."""


def counted(number: int, what: str, one: str = "", many: str = "") -> str:
    """Returns a number of things in words: "1 prompt", "2,400 prompts", "1 prompt is", "2,400 prompts are".

    `one`, `many`: the verb, or whatever else differs, for one thing and for several.
    """
    verb = agreeing(number, one, many)
    return f"{number:,} {what}{agreeing(number, '', 's')}{f' {verb}' if verb else ''}"


def agreeing(number: int, one: str, many: str) -> str:
    """Returns the form that goes with that number of things."""
    return one if number == 1 else many


def short(value: float) -> str:
    """Formats a number in a few characters: `812`, `9.2k`, `1.4M`."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{suffix}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Formats a duration: `48 s`, `3 min 20 s`, `5 h 02 min`, `3 days 4 h`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7_200:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86_400:,} days {whole % 86_400 // 3600} h"
