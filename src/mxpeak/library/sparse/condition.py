"""Whether A is numerically singular, by its factors: one solve for random numbers, and an estimate if that gives doubt.

Factors in fp32 cannot distinguish a condition of 1e8 from a singular matrix.  If GMRES with them solves for random
numbers, the size of that solution shows that the condition is far from 1/u; otherwise factors in fp64 decide.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, isfinite

import numpy as np

from mxpeak.comm.collectives import run_on_root
from mxpeak.kernels.arrays import xp
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.factors import Factors
from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.rank_group import RankGroup
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.condition import PROBE_SEED, PROBED, inverse_one_norm


@lru_cache(maxsize=8)
def probe(n: int) -> Array:
    """Return n random numbers of either sign, 1 to 2 in size: no usual null vector is at right angles to them."""
    rng = np.random.default_rng(PROBE_SEED)
    found: Array = rng.choice((-1.0, 1.0), n) * rng.uniform(1.0, 2.0, n)
    return found


def suspicious(probed: float, precision: str) -> bool:
    """Return whether a lower bound of the condition, from one solve, is large for the precision of that solve."""
    return not probed * PRECISIONS[precision].u <= PROBED


def largest_row(A: Csr, everybody: RankGroup) -> float:
    """Return ||A||_inf.  Collective."""
    sums = np.add.reduceat(np.abs(A.data), A.indptr[:-1]) if A.nnz else np.zeros(1)
    return everybody.largest(float(sums.max(initial=0.0)))


def probed_by(factors: Factors, A: Csr, everybody: RankGroup) -> float:
    """Return ||A||_inf·||z||_inf / 2, a lower bound of the condition: z is the factors' solution for the probe.

    Collective.
    """
    n = int(everybody.sum(A.shape[0]))

    def size() -> float:
        return float(np.max(np.abs(factors.solve(probe(n)))))

    return 0.5 * largest_row(A, everybody) * run_on_root(everybody.comm, size)


def estimated(factors: Factors, A: Csr, everybody: RankGroup) -> float:
    """Return about ||A||_1·||A^-1||_1 by Higham's method, at least 1; rarely 3 times too small.  Collective."""
    n = int(everybody.sum(A.shape[0]))
    columns = everybody.gathered(np.bincount(A.indices, np.abs(A.data), A.shape[1]), np.add)[: A.shape[0]]
    A_one = everybody.largest(float(columns.max(initial=0.0)))

    def inverse() -> float:
        with np.errstate(all="ignore"):
            return inverse_one_norm(factors.solve, factors.solve_transposed, xp.arange(n), n, np.dtype(np.float64), xp)

    found = A_one * run_on_root(everybody.comm, inverse)
    return max(found, 1.0) if isfinite(found) else inf


def warning_of(condition: float, reached: bool) -> str:
    """Return why x may have no correct digit, although the residual is small or because it is not."""
    small = "the residual is small, but " if reached else ""
    return (
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / PRECISIONS['fp64'].u:.1e}; "
        f"{small}x may have no correct digit; check A for linearly dependent rows or columns, or use "
        "regularization or least squares (scipy.sparse.linalg.lsqr)"
    )
