"""An observer that ends a program right after one of its steps."""


class Killed(BaseException):
    """The end of a program, right after a step."""


class Killer:
    """Ends the program after so many of its steps. `struck`: the name of that step, once it was taken."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self.struck = ""

    def before(self, step: str, about: object) -> None:
        pass

    def after(self, step: str, about: object, answer: object) -> None:
        self._left -= 1
        if self._left == 0:
            self.struck = step
            raise Killed
