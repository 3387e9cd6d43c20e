"""Scaling by powers of two: nothing is rounded by it, and what follows stays in range.

A_s = D_r A D_c
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Vector

#: A matrix is scaled if the sums of its rows, or of its columns, spread by more, or lie farther from 1, than this.
SPREAD, RANGE = 2.0**10, 2.0**60
#: Numbers below this are scaled by its reciprocal.
LEAST = 2.0**-1000
#: The least and the largest of some numbers.
Ends = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Balance:
    """Powers of two by which rows and columns were multiplied: R over the rows, C over the columns."""

    R: Vector
    C: Vector


def balanced(rows: Ends, columns: Ends, spread: float = SPREAD) -> Any:
    """Whether range and spread of the sums of absolute values suit a solver as they are; NaN and Inf do not.

    Of the rows' sums, and of the columns', the smallest and the largest are given: numbers, or arrays of them.  Their
    quotient may be `spread`.
    """
    suits: Any = True
    for low, high in (rows, columns):
        suits = suits & (high <= spread * low) & (high > 1 / RANGE) & (high < RANGE)
    return suits


def powers(largest: Vector, xp: Any) -> Vector:
    """For each finite x >= 0 the power of two that brings it to [1/2, 1), 2^1000 at most; 1 for a zero.

    x = m·2^e, m in [1/2, 1), and 2^-e = m / x without rounding.
    """
    x = xp.astype(largest, xp.float64, copy=False)
    m, zero = xp.frexp(x)[0], x == 0.0
    return (m + zero) / xp.where(x < LEAST, m * LEAST + zero, x)


def spread(largest: Vector, xp: Any) -> int:
    """How many powers of two lie between the numbers other than zero."""
    exponents = xp.frexp(largest[largest > 0])[1]
    return int(xp.max(exponents)) - int(xp.min(exponents)) if exponents.shape[0] else 0


def balance(A: DistMatrix, kernels: Kernels) -> Balance:
    """Scale A's rows, then its columns, by powers of two to largest entries in (1/2, 1]; A is overwritten by R A C.

    Exact, for powers of two only move exponents (short of under- and overflow).  Collective over the grid; 4·N² flops.
    """
    xp, (m, n) = kernels.xp, A.local.shape
    rows, columns = xp.zeros(m), xp.zeros(n)
    kernels.row_max(A.local, rows)
    A.grid.row.allreduce(rows, "max")
    R = _reciprocal_powers(rows, kernels)
    kernels.scale_rows_columns(A.local, R, xp.ones(n))
    kernels.column_max(A.local, columns)
    A.grid.column.allreduce(columns, "max")
    C = _reciprocal_powers(columns, kernels)
    kernels.scale_rows_columns(A.local, xp.ones(m), C)
    return Balance(R, C)


def _reciprocal_powers(largest: Vector, kernels: Kernels) -> Vector:
    """2^-ceil(log2 of each entry), and 1 where it is zero or not finite."""
    powers = kernels.xp.zeros(len(largest))
    kernels.reciprocal_powers(powers, largest)
    return powers
