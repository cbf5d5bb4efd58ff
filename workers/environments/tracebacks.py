"""The traceback of an environment that raised: as text, and its frames that lie in the user's own module.

A frame is named by its file, line and function. It never holds the text of the line, nor a value, either of which might
be a secret.
"""

import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

FRAMES_MAX = 3
"""The number of frames that are told; a recursion has thousands."""
FRAME_LENGTH = 300
"""The length to which the text of a frame is cut."""
CREDENTIALS = re.compile(r"(?<=//)[^/\s@]*:[^/\s@]*@")
INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Frame:
    """A place in the code of the user."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """Returns the place in a few words: "rewards.py, line 12"."""
        return f"{Path(self.file).name}, line {self.line}"

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, in {self.function}"[-FRAME_LENGTH:]


@dataclass(frozen=True)
class UserModule:
    """The module that `environment.function` names. `root`: its file, or the folder of the user's code around it."""

    root: Path | None

    @classmethod
    def of(cls, reference: str) -> Self:
        """Returns the imported module of "module:name"; one without any frames for an environment of our own."""
        name = reference.partition(":")[0]
        file = getattr(sys.modules.get(name), "__file__", None)
        if not name or file is None:
            return cls(None)
        package = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
        folder = Path(package or file).resolve().parent
        return cls(Path(file).resolve() if folder.name in INSTALLED else folder)

    def frames(self, error: BaseException) -> list[Frame]:
        """Returns the error's last frames in the module or beside it, the innermost last."""
        summary = traceback.extract_tb(error.__traceback__)
        inside = [one for one in summary if self._holds(Path(one.filename))]
        return [Frame(one.filename, one.lineno or 0, one.name) for one in inside[-FRAMES_MAX:]]

    def _holds(self, file: Path) -> bool:
        if self.root is None or not file.resolve().is_relative_to(self.root):
            return False
        return not INSTALLED.intersection(file.resolve().relative_to(self.root).parts)


def formatted(error: BaseException, frames: Sequence[Frame] = ()) -> str:
    """Returns the traceback as text that JSON can carry. It ends with the place of the innermost of `frames`.

    User and password of an address are left out.
    """
    text = CREDENTIALS.sub("…@", "".join(traceback.format_exception(error)).rstrip())
    if frames:
        text += f" ({frames[-1].place})"
    return text.encode("utf-8", "replace").decode()
