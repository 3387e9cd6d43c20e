"""Test that an x without digits has a message or a large error bound in docs/explanation/mixed-precision.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mxpeak as mx

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.mixed_precision import answer, by_mxpeak, digits, in_fp32, reference, replaced, systems

N = 90


def bound_of(A: Any, b: Any) -> float:
    """Return the bound of the relative error that `mx.solve` returns."""
    bound = mx.solve(A, b)[1].error_bound
    assert bound is not None
    return bound.normwise


def test_solutions_without_digits_have_a_message() -> None:
    silent = 0
    for name, A, b in systems(N, 3):
        y = reference(A, b)
        x, report = answer(by_mxpeak, A, b)
        if y is None or float(digits(x, y)) < 1:
            assert report != "–" or bound_of(A, b) >= 0.1, name
            continue
        assert np.abs(x - y).max() <= bound_of(A, b) * np.abs(x).max(), name
        narrow, of_fp32 = answer(in_fp32, A, b)
        silent += of_fp32 == "–" and (narrow is None or float(digits(narrow, y)) <= 7)
    assert silent >= 4  # the approach without refinement loses digits without a message


def test_references_are_solutions_in_extended_precision() -> None:
    for name, A, b in systems(N, 4):
        y = reference(A, b)
        if y is None:
            assert name in ("condition 10^15", "singular up to rounding", "a column of zeros")
            continue
        assert y.dtype == np.longdouble
        sizes = np.abs(A.astype(np.longdouble)) @ np.abs(y) + np.abs(b)
        assert (np.abs(b - A.astype(np.longdouble) @ y) <= 2.0**-55 * sizes).all(), name


def test_only_marked_tables_are_replaced() -> None:
    page = "a\n<!-- begin digits -->\nold\n<!-- end digits -->\nb"
    assert replaced(page, "digits", "new") == "a\n<!-- begin digits -->\n\nnew\n\n<!-- end digits -->\nb"
    with pytest.raises(SystemExit, match="has no comments"):
        replaced(page, "times", "new")
