"""Floating-point formats: bytes, unit roundoff, range, and the format in which their products are accumulated."""

from __future__ import annotations

from dataclasses import dataclass

from mxpeak.errors import UsageError


@dataclass(frozen=True, slots=True)
class Precision:
    """A floating-point format with p significand bits and unit roundoff u = 2^-p.

    largest, smallest   largest and smallest normal number
    accumulate          name of the format in which products are accumulated
    """

    name: str
    bytes: int
    p: int
    largest: float
    smallest: float
    accumulate: str

    @property
    def u(self) -> float:
        """Return the unit roundoff 2^-p, the largest relative error of rounding to nearest."""
        return 2.0**-self.p

    @property
    def spacing(self) -> float:
        """Return the smallest distance between two numbers of the format, the spacing of its subnormal numbers."""
        return self.smallest * 2.0 ** (1 - self.p)


PRECISIONS: dict[str, Precision] = {
    f.name: f
    for f in (
        Precision("fp64", 8, 53, 1.7976931348623157e308, 2.0**-1022, "fp64"),
        Precision("fp32", 4, 24, 3.4028234663852886e38, 2.0**-126, "fp32"),
        Precision("tf32", 4, 11, 3.4011621342146535e38, 2.0**-126, "fp32"),
        Precision("bf16", 2, 8, 3.3895313892515355e38, 2.0**-126, "fp32"),
        Precision("fp16", 2, 11, 65504.0, 2.0**-14, "fp32"),
        Precision("fp8", 1, 4, 448.0, 2.0**-6, "fp32"),
    )
}


def precision(name: str) -> Precision:
    """Return the format with this name; raise a UsageError with the list of formats if the name is unknown."""
    try:
        return PRECISIONS[name]
    except KeyError:
        raise UsageError(f"unknown precision {name!r}; use one of {', '.join(PRECISIONS)}") from None


def stored_as(name: str) -> str:
    """Return the name of the format in which an LU stores A, L and U if the operands of its products are in `name`."""
    return precision(name).accumulate
