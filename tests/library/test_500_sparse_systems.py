"""Test 500 small sparse systems of ten kinds row by row in extended precision.

The residual in `info` is correct, a tolerance that is reported as reached is reached in every row, and an x that may
have no correct digit is never returned without a warning.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import mxpeak as mx
from tests.support.extended import solved
from tests.support.roundoff import U
from tests.support.scattered_systems import systems

Array = np.ndarray[Any, np.dtype[Any]]
Long = np.longdouble
TOL = 1e-12

pytestmark = pytest.mark.skipif(np.finfo(Long).nmant < 63, reason="long double has no more digits than fp64 here")


def test_reports_of_500_sparse_systems_are_correct() -> None:
    rng = np.random.default_rng(52)
    counted = {"solved": 0, "warned": 0, "unreached": 0, "refused": 0}
    for number, (name, dense) in enumerate(systems()):
        n, A = len(dense), sparse.csr_array(dense)
        fits = (number // 10) % 2 == 1
        b = dense @ np.ones(n) if fits else rng.standard_normal(n)
        precision = ("mixed", "fp64", "fp32", "bf16", "mixed")[number % 5]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mx.IllConditionedWarning)
            try:
                x, info = mx.gmres(A, b, precision=precision, rtol=TOL)
            except np.linalg.LinAlgError:
                assert name in ("structurally singular", "short by an ulp", "nearly singular", "any", "band"), name
                counted["refused"] += 1
                continue
        assert name != "structurally singular"
        A_, x_, b_ = (v.astype(Long) for v in (dense, x, b))
        r, b_norm = np.abs(b_ - A_ @ x_), np.sqrt((b_ * b_).sum())
        # The fp64 residual differs from this one by the rounding of n + 1 terms in each row.
        terms = np.abs(A_) @ np.abs(x_) + np.abs(b_)
        off = (n + 1) * U * np.sqrt((terms * terms).sum()) / b_norm
        found = float(np.sqrt((r * r).sum()) / b_norm)
        assert abs(found - info.residual) <= off, (number, name, found, info)
        if info.converged:
            assert (r <= (TOL + off) * b_norm).all(), (number, name, info)
        y = solved(dense, b)
        error = float(np.abs(x - y).max() / np.abs(y).max()) if np.isfinite(y).all() else np.inf
        if info.converged and not info.ill_conditioned and np.isfinite(y).all():
            # |x - y| <= |A^-1| |r| in every row for any solver: the tolerance limits the error.
            inverse = solved(dense, np.eye(n))
            assert (np.abs(x_ - y) <= np.abs(inverse) @ (r + off * b_norm) + U * np.abs(y)).all(), (number, name, info)
        lost = not error < 0.5
        conditioned = np.linalg.cond(dense) if name not in ("graded", "nearly singular") else np.inf
        assert not (lost and info.converged and not info.ill_conditioned and conditioned * TOL < 0.1), (number, info)
        assert not (info.ill_conditioned and name in ("dominant", "permuted", "graded")), (number, info)
        if name in ("dominant", "permuted", "graded", "skew", "saddle"):
            assert info.converged or name == "skew" or (name == "graded" and not fits), (number, name, info)
            assert not lost or name in ("skew", "graded"), (number, name, error, info)
        explained = (
            "as small as fp64 makes it",
            "no residual is small in all of them",
            "numerically singular",
            "x solves all rows",
        )
        assert info.converged or any(text in info.message for text in explained), (number, name, info)
        if "x solves all rows" in info.message:
            assert not lost or info.ill_conditioned, (number, name, error, info)
        counted["warned" if info.ill_conditioned else "solved" if info.converged else "unreached"] += 1
    assert sum(counted.values()) == 500
    assert counted["refused"] >= 50, counted
    assert counted["solved"] >= 340, counted
    assert counted["warned"] >= 30, counted
