"""The numbers of a fleet file, each with where it comes from: what was measured and what is assumed are two types.

A bare number is refused, so that nobody takes a guess for a measurement. What is chosen and not found out (S, κ, the
size of a batch) is a plain number. Prices are data of a day, with their source.
"""

from datetime import date
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

Text = Annotated[str, Field(min_length=1)]


class Table(BaseModel):
    """A table of the fleet file. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Measured(Table):
    """A number that somebody measured. `source`: the command, the page or the run that gave it."""

    measured: float
    source: Text

    @property
    def value(self) -> float:
        return self.measured

    def times(self, factor: float) -> Self:
        return self.model_copy(update={"measured": self.measured * factor})


class Assumed(Table):
    """A number that nobody measured. `why`: the reason to take this one."""

    assumed: float
    why: Text

    @property
    def value(self) -> float:
        return self.assumed

    def times(self, factor: float) -> Self:
        return self.model_copy(update={"assumed": self.assumed * factor})


def _kind(value: Any) -> str | None:
    if isinstance(value, Measured | Assumed):
        return type(value).__name__
    keys = value if isinstance(value, dict) else {}
    return {(True, False): "Measured", (False, True): "Assumed"}.get(("measured" in keys, "assumed" in keys))


def _positive(value: Measured | Assumed) -> Measured | Assumed:
    if value.value <= 0:
        raise PydanticCustomError("too_small", "must be more than 0")
    return value


def _not_negative(value: Measured | Assumed) -> Measured | Assumed:
    if value.value < 0:
        raise PydanticCustomError("too_small", "must be 0 or more")
    return value


def _share(value: Measured | Assumed) -> Measured | Assumed:
    if not 0 < value.value <= 1:
        raise PydanticCustomError("no_share", "must be a share: more than 0 and at most 1")
    return value


Quantity = Annotated[
    Annotated[Measured, Tag("Measured")] | Annotated[Assumed, Tag("Assumed")],
    Discriminator(
        _kind,
        custom_error_type="bare_number",
        custom_error_message="it must say whether it was measured or is assumed",
    ),
]
Positive = Annotated[Quantity, AfterValidator(_positive)]
NotNegative = Annotated[Quantity, AfterValidator(_not_negative)]
Share = Annotated[Quantity, AfterValidator(_share)]


class Price(Table):
    """The price of a machine for an hour, on a day, from a source."""

    usd_per_hour: Annotated[float, Field(gt=0)]
    on: date
    source: Text


class TrafficPrice(Table):
    """The price of bytes that leave the store, on a day, from a source."""

    usd_per_gb: Annotated[float, Field(ge=0)]
    on: date
    source: Text
