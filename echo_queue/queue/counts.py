"""Numbers of things in words, in the singular or the plural, with the verb that goes with them."""


def counted(number: int, what: str, one: str = "", many: str = "") -> str:
    """Returns a number of things in words: "1 prompt", "2,400 prompts", "1 prompt is", "2,400 prompts are".

    `one`, `many`: the verb, or whatever else differs, for one thing and for several.
    """
    verb = agreeing(number, one, many)
    return f"{number:,} {what}{agreeing(number, '', 's')}{f' {verb}' if verb else ''}"


def agreeing(number: int, one: str, many: str) -> str:
    """Returns the form that goes with that number of things."""
    return one if number == 1 else many
