"""Two rates measured in turns, first one, then the other: how much the second is above the first, and how surely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

#: How surely the median lies in its interval, where there are rounds enough for it.
SURE = 0.9


@dataclass(frozen=True, slots=True)
class Turns:
    """The rates of two commands by round: the two of a round were measured one right after the other.

    change    the second median over the first, less one
    noise     half the width of the interval that holds the median of the rounds' ratios in nine cases of ten; a machine
              that drifts over the rounds moves both rates of a round, and not their ratio
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """Of the first, and of the second."""
        return median(self.before), median(self.after)

    @property
    def change(self) -> float:
        """The second median over the first, less one."""
        first, second = self.medians
        return second / first - 1.0

    @property
    def noise(self) -> float:
        """Half the width of the interval that holds the median ratio."""
        low, high = around_median([b / a for a, b in zip(self.before, self.after)])
        return (high - low) / 2


def around_median(values: Sequence[float]) -> tuple[float, float]:
    """The interval between two of the values that holds the median of their distribution with probability SURE.

    Whatever the distribution is: as many lie below the median as tails come of so many coins.  Fewer than five values
    span less than that; they give the least and the largest.
    """
    ordered, n = sorted(values), len(values)
    cut = 0
    while 2 * sum(comb(n, k) for k in range(cut + 2)) <= (1.0 - SURE) * 2**n:
        cut += 1
    return ordered[cut], ordered[n - 1 - cut]
