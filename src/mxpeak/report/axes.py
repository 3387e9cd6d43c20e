"""Axes of figures, linear and logarithmic: where a value stands, and round numbers at the ticks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

#: How many ticks an axis from zero has, about, and how far those of a logarithmic one are apart at least.
TICKS, APART = 5, 0.1


#: Sizes of numbers that a figure can hold: sums, ratios and logarithms of them stay in the range of fp64.
DRAWN = (1e-60, 1e60)


def drawable(values: Iterable[float | None]) -> bool:
    """Whether all values are numbers of a size that a figure can hold, or zero."""
    return all(value is not None and (value == 0 or DRAWN[0] <= abs(value) <= DRAWN[1]) for value in values)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its ends, its ticks with what stands at them, and whether equal ratios are equally far apart."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    @classmethod
    def through(cls, ticks: Sequence[tuple[float, str]]) -> Axis:
        """A linear axis with these ticks, and a little air around them."""
        low, high = min(at for at, _ in ticks), max(at for at, _ in ticks)
        air = 0.05 * (high - low) or 0.5
        return cls(low - air, high + air, ticks)

    @classmethod
    def from_zero(cls, high: float, *, whole: bool = False) -> Axis:
        """A linear axis from zero to a little above `high`; with whole numbers only at its ticks, if `whole`."""
        high = high if high > 0 else 1.0
        decade = 10.0 ** floor(log10(high / TICKS))
        step = next(m * decade for m in (1, 2, 5, 10) if m * decade * TICKS >= high)
        step = max(1.0, step) if whole else step
        count = floor(high / step * (1 + 1e-12)) + 1
        ticks = [(k * step, number(float(f"{k * step:.6g}")) if k else "0") for k in range(count)]
        return cls(0.0, 1.04 * high, ticks)

    @classmethod
    def decades(cls, values: Sequence[float]) -> Axis:
        """A logarithmic axis with a little air around all values."""
        low, high = log10(min(values)), log10(max(values))
        air = 0.04 * (high - low) or 0.2
        ends = 10 ** (low - air), 10 ** (high + air)
        return cls(*ends, [(tick, number(tick)) for tick in round_numbers(*ends)], logarithmic=True)

    def place(self, value: float, begin: float, end: float) -> float:
        """Where a value stands between two coordinates of the drawing."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = log10(low), log10(high), log10(value)
        return begin + (value - low) / (high - low) * (end - begin)


def round_numbers(low: float, high: float) -> list[float]:
    """Powers of ten; where there are fewer than three, also their multiples by 2 and 5, or by 1 to 9."""
    for digits in ((1,), (1, 2, 5), tuple(range(1, 10))):
        decades = range(floor(log10(low)), ceil(log10(high)) + 1)
        found = [t for decade in decades for digit in digits if low <= (t := float(f"{digit}e{decade}")) <= high]
        if len(found) >= 3:
            break
    kept: list[float] = []
    for tick in found:
        if not kept or log10(tick / kept[-1]) >= APART * log10(high / low):
            kept.append(tick)
    return kept


def number(value: float) -> str:
    """A tick's value: plain between a thousandth and 100000, else as a power of ten."""
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    digit, exponent = f"{value:.0e}".split("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power}" if digit == "1" else f"{digit}·10{power}"


def unit_of(rates: Sequence[float], unit: str) -> tuple[float, str]:
    """A factor for rates, and the unit that they then have: that of the largest."""
    name = "FLOP/s" if unit == "flop/s" else "B/s"
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12)):
        if max(rates) >= size:
            return 1 / size, f"{prefix}{name}"
    return 1e-9, f"G{name}"
