"""Compare two rates that were measured alternately: the relative change and its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

#: Probability that the interval contains the median, if there are enough rounds.
SURE = 0.9


@dataclass(frozen=True, slots=True)
class PairedRates:
    """Rates of two commands by round; both rates of a round were measured immediately one after the other.

    change    second median divided by the first, minus one
    noise     half the width of the interval that contains the median ratio of the rounds with probability 0.9. A
              drift of the machine over the rounds changes both rates of a round but not their ratio.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """Return the median rates of the first and the second command."""
        return median(self.before), median(self.after)

    @property
    def change(self) -> float:
        """Return the relative change: the second median divided by the first, minus one."""
        first, second = self.medians
        return second / first - 1.0

    @property
    def noise(self) -> float:
        """Return half the width of the interval that contains the median ratio with probability 0.9."""
        low, high = around_median([b / a for a, b in zip(self.before, self.after)])
        return (high - low) / 2


def around_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the interval that contains the median of the values' distribution with probability SURE.

    The interval is valid for any distribution, because the number of values below the median is binomial. With fewer
    than five values, the probability is lower, and the bounds are the minimum and the maximum.
    """
    ordered, n = sorted(values), len(values)
    cut = 0
    while 2 * sum(comb(n, k) for k in range(cut + 2)) <= (1.0 - SURE) * 2**n:
        cut += 1
    return ordered[cut], ordered[n - 1 - cut]
