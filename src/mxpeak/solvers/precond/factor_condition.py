"""Detect numerically singular matrices from a solve with random data and an estimate of the condition number.

fp32 factors cannot distinguish a condition number of 1e8 from infinity. If GMRES with these factors solves for a random
right-hand side, the size of the solution shows whether the condition number is far below 1/u. If GMRES does not
converge, fp64 factors decide.
"""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.kernels.arrays import probe_vector, xp
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.condition import PROBED, inverse_one_norm
from mxpeak.solvers.precond.factors import SparseFactors


def suspicious(bound: float, precision: str) -> bool:
    """Return whether a lower bound of the condition number is suspiciously large for a precision."""
    return not bound * PRECISIONS[precision].u <= PROBED


def largest_row(A: Csr, group: RankGroup) -> float:
    """Return ||A||_inf. Collective."""
    sums = np.add.reduceat(np.abs(A.data), A.indptr[:-1]) if A.nnz else np.zeros(1)
    return group.largest(float(sums.max(initial=0.0)))


def condition_bound(factors: SparseFactors, A: Csr, group: RankGroup) -> float:
    """Return a lower bound of the condition number, ||A||_inf·||z||_inf / 2 with A z = s. Collective.

    The entries of s are random numbers.
    """
    n = int(group.sum(A.shape[0]))
    return 0.5 * largest_row(A, group) * group.on_root(lambda: float(np.max(np.abs(factors.solve(probe_vector(n))))))


def condition_estimate(factors: SparseFactors, A: Csr, group: RankGroup) -> float:
    """Return an estimate of ||A||_1·||A^-1||_1 by Higham's method, rarely too small by a factor of 3. Collective."""
    n = int(group.sum(A.shape[0]))
    columns = group.combined(np.bincount(A.indices, np.abs(A.data), A.shape[1]), np.add)[: A.shape[0]]
    A_one = group.largest(float(columns.max(initial=0.0)))

    def inverse() -> float:
        with np.errstate(all="ignore"):
            return inverse_one_norm(factors.solve, factors.solve_transposed, xp.arange(n), n, np.dtype(np.float64), xp)

    estimate = A_one * group.on_root(inverse)
    return max(estimate, 1.0) if isfinite(estimate) else inf
