"""Pair units in the rounds of a round-robin tournament, so that each pair meets once (circle method)."""

from __future__ import annotations


def round_count(units: int) -> int:
    """Return the number of rounds in which each pair of units meets once: n - 1, or n if n is odd."""
    return 0 if units < 2 else units - 1 + units % 2


def opponent(units: int, k: int, unit: int) -> int | None:
    """Return the unit that `unit` meets in round k, or None if it pauses.

    With m = n, or n + 1 if n is odd, units u and v < m - 1 meet in the round k with u + v = k (mod m - 1). The unit u
    with 2u = k meets unit m - 1, which does not exist if n is odd.
    """
    m = units + units % 2
    u = k * (m // 2) % (m - 1)  # 2 · m/2 = 1 (mod m - 1), so 2u = k
    if unit == m - 1:
        return u
    if unit == u:
        return m - 1 if m == units else None
    return (k - unit) % (m - 1)
