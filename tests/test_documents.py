"""A document is what its class says, and has one spelling."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter

from echo_queue import documents
from echo_queue.records import Version


@dataclass(frozen=True)
class Crate:
    version: Version
    width: Annotated[int, Field(ge=0)]
    height: float = 1.0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.width > 9:
            raise ValueError("it is too wide")


CRATE = Crate(Version(1, 40), 3, 2, ("a", "b"))
"""Its height is a whole number, as any caller may give it."""
ENCODED = b'{"version":"1.40","width":3,"height":2.0,"names":["a","b"]}'


def test_a_document_comes_back_from_its_one_spelling() -> None:
    assert documents.encode(CRATE) == ENCODED
    assert documents.decode(Crate, ENCODED, "a crate") == CRATE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"width":3', b'"width":3.0'),
        (b'"width":3', b'"width":"3"'),
        (b'"width":3', b'"width":true'),
        (b'"width":3', b'"width":-3'),
        (b'"width":3', b'"width":10'),
        (b'"width":3', b'"width": 3'),
        (b'"width":3', b'"width":3,"depth":1'),
        (b'"width":3', b'"width":3,"width":3'),
        (b'"width":3,"height":2.0', b'"height":2.0,"width":3'),
        (b'"height":2.0', b'"height":2'),
        (b'"height":2.0,', b""),
        (b'"1.40"', b'"1.040"'),
        (b'"1.40"', b"[1,40]"),
        (b'"b"]}', b'"b"]'),
        (b'"a"', b'"\xff"'),
        (ENCODED, b"null"),
    ],
)
def test_what_no_encoder_writes_is_refused_by_name(old: bytes, new: bytes) -> None:
    with pytest.raises(ValueError, match=r"^a crate is "):
        documents.decode(Crate, ENCODED.replace(old, new), "a crate")


def test_what_a_class_refuses_is_told() -> None:
    with pytest.raises(ValueError, match=r"a crate is malformed, or of another release: .*it is too wide"):
        documents.decode(Crate, ENCODED.replace(b":3", b":10"), "a crate")


def test_a_printed_document_has_the_properties_that_its_class_names() -> None:
    @documents.printed("area", twice="doubled")
    @dataclass(frozen=True)
    class Sheet:
        width: int

        @property
        def area(self) -> int:
            return self.width**2

        @property
        def doubled(self) -> int:
            return 2 * self.area

    form = TypeAdapter(Sheet).dump_python(Sheet(3), by_alias=True)
    assert form == {"width": 3, "area": 9, "twice": 18}
    assert Sheet(3).doubled == 18
