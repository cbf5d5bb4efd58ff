"""An observer that ends a program right after one of its steps."""


class Killed(BaseException):
    """The end of a program, right after a step."""


class Killer:
    """Ends a program right after the `steps`-th of its steps, as a crash or a lost reply would.

    `death`: what is raised. `taken`: the names of the steps so far.
    """

    def __init__(self, steps: int, death: type[BaseException] = Killed) -> None:
        self.taken: list[str] = []
        self._steps = steps
        self._death = death

    @property
    def struck(self) -> str:
        """Returns the name of the step after which the program ended; empty if it took fewer."""
        return self.taken[self._steps - 1] if 0 < self._steps <= len(self.taken) else ""

    def before(self, step: str, about: object) -> None:
        pass

    def after(self, step: str, about: object, answer: object) -> None:
        self.taken.append(step)
        if len(self.taken) == self._steps:
            raise self._death
