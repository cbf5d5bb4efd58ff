"""The traceback of an environment that raised: as text, and its frames that lie in the user's own module.

A frame is named by its file, line and function. It never holds the text of the line, nor a value, either of which might
be a secret.
"""

import re
import sys
import traceback
from collections.abc import Iterable, Sequence
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
class UserModules:
    """The modules that the configuration names. `roots`: their files, or the folders of the user's code around them."""

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, references: Iterable[str]) -> Self:
        """Returns the imported modules of "module:name"; an environment of our own has none."""
        return cls(tuple(root for one in references if (root := _root(one.partition(":")[0]))))

    def frames(self, error: BaseException) -> list[Frame]:
        """Returns the error's last frames in the modules or beside them, the innermost last."""
        summary = traceback.extract_tb(error.__traceback__)
        inside = [one for one in summary if self._holds(Path(one.filename))]
        return [Frame(one.filename, one.lineno or 0, one.name) for one in inside[-FRAMES_MAX:]]

    def _holds(self, file: Path) -> bool:
        file = file.resolve()
        above = [root for root in self.roots if file.is_relative_to(root)]
        return any(not INSTALLED.intersection(file.relative_to(root).parts) for root in above)


def _root(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    if not module or file is None:
        return None
    package = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    folder = Path(package or file).resolve().parent
    return Path(file).resolve() if folder.name in INSTALLED else folder


def formatted(error: BaseException, frames: Sequence[Frame] = (), reward: str = "") -> str:
    """Returns the traceback as text that JSON can carry. It ends with the place of the innermost of `frames`.

    `reward`: the name of the reward function that raised, which then stands before the place. User and password of an
    address are left out.
    """
    text = CREDENTIALS.sub("…@", "".join(traceback.format_exception(error)).rstrip())
    if said := [*([f"reward {reward}"] if reward else []), *(frame.place for frame in frames[-1:])]:
        text += f" ({', '.join(said)})"
    return text.encode("utf-8", "replace").decode()
