"""Compare the normwise backward error near the limits of the range with exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import inf, isnan, nan

import pytest

from mxpeak.solvers.residual import backward_error

U = 2.0**-53
SIZES = (0.0, 5e-324, 1e-300, 1e-170, 1.0, 1e170, 1e300, 1.7e308)


def test_the_quotient_is_exact_for_numbers_of_any_size() -> None:
    for r, A, x, b in product(SIZES, repeat=4):
        scale = Fraction(A or 1.0) * Fraction(x) + Fraction(b)
        if not scale:
            continue
        exact = Fraction(r) / scale / Fraction(7 * U)
        eta = backward_error(r, A, x, b, 7, U)
        if exact > Fraction(1.7e308):
            assert eta > 1e290, (r, A, x, b)
        elif exact > Fraction(1e-290):
            assert eta == pytest.approx(float(exact), rel=1e-14), (r, A, x, b)
        else:
            assert 0.0 <= eta < 1e-280, (r, A, x, b)


def test_numbers_that_are_not_finite() -> None:
    assert backward_error(0.0, 0.0, 0.0, 0.0, 3, U) == 0.0
    assert backward_error(inf, 1.0, 0.0, 0.0, 3, U) == inf
    assert isnan(backward_error(nan, 1.0, 0.0, 0.0, 3, U))
    assert isnan(backward_error(1.0, nan, 1.0, 1.0, 3, U))
    assert backward_error(1.0, inf, 1e-308, 1.0, 1, U) >= 1e15 / 2
