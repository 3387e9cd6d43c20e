"""HPCG's tests of an optimized code: a matrix with a known number of iterations, symmetry, and reproducibility.

spectral      the finest diagonal is multiplied by 10^6, and in the first nine rows by 2·10^6 … 10·10^6; b is multiplied
              by the same factors. The other entries are then negligible, and CG sees ten distinct eigenvalues. CG may
              need 12 iterations to reach 1e-12, or 2 with the preconditioner, whose coarser levels do not change. Each
              solve runs twice from x = 0.
symmetry      |xᵀA y - yᵀA x| / (2·52·xᵀx·yᵀy·ε) <= 1 with ε = 2^-52 and random entries of x and y in [1, 2], and
              the same for the preconditioner M^-1
norms         the variance of the sets' scaled residuals is below 1e-6

Source: HPCG 3.1, TestCG.cpp, TestSymmetry.cpp, TestNorms.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import Level, SparseMatrix
from mxpeak.distributed.stencil import weights
from mxpeak.distributed.system import CgSystem, Preconditioner
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.layout.stencil import Box
from mxpeak.solvers.cg import conjugate_gradients
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

#: The spectral test: the factor of the diagonal, and the number of rows with larger factors. The next line has the
#: maximum number of iterations, the tolerance, the allowed iterations without and with the preconditioner, and the
#: number of solves.
LARGE, SPECIAL = 1e6, 9
MAX_STEPS, TOLERANCE, EXPECTED, EXPECTED_PRECONDITIONED, CALLS = 50, 1e-12, 12, 2, 2
#: The norm of A in the symmetry test, and ε.
NORM_OF_A, EPSILON = 2 * 26.0, 2.0**-52
#: Odd factors that mix the index of an entry: multipliers of good generators modulo 2^64 (Knuth; L'Ecuyer 1999).
MIX = (6364136223846793005, 3935559000370003845)
#: The variance of the residuals must be below this value.
VARIANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Spectral:
    """The largest number of CG iterations in the spectral test, without and with the preconditioner."""

    unpreconditioned: int
    preconditioned: int

    @property
    def passed(self) -> bool:
        """Return whether CG took no more iterations than expected."""
        return self.unpreconditioned <= EXPECTED and self.preconditioned <= EXPECTED_PRECONDITIONED


@dataclass(frozen=True, slots=True)
class Symmetry:
    """The deviation of A and of the preconditioner from symmetry, in units of the allowed deviation."""

    spmv: float
    mg: float

    @property
    def passed(self) -> bool:
        """Return whether A and the preconditioner are symmetric within the allowed deviation. A NaN fails."""
        return self.spmv <= 1.0 and self.mg <= 1.0


@dataclass(frozen=True, slots=True)
class SetResiduals:
    """The scaled residuals of all sets."""

    samples: list[float]

    @property
    def mean(self) -> float:
        """Return the mean of the residuals."""
        return sum(self.samples) / len(self.samples)

    @property
    def variance(self) -> float:
        """Return the population variance of the residuals, Σ (sample - mean)² / number of samples."""
        return sum((sample - self.mean) ** 2 for sample in self.samples) / len(self.samples)

    @property
    def passed(self) -> bool:
        """Return whether all residuals are finite and equal except for rounding."""
        return all(map(isfinite, self.samples)) and self.variance < VARIANCE


def spectral_test(
    kernels: SparseKernels, comm: Communicator, top: Level, box: Box, order: str, spans: Spans
) -> Spectral:
    """Run CG on the matrix with the enlarged diagonal, without and with multigrid, and count the iterations.

    Collective.
    """
    level, b = with_large_diagonal(kernels, top, box, order)
    steps = []
    for precondition in (None, partial(cycle, level)):
        system = CgSystem(kernels, comm, level.A, b, precondition, spans)
        steps.append(max(_steps(system) for _ in range(CALLS)))
    return Spectral(*steps)


def _steps(system: CgSystem) -> int:
    system.restart_from_zero()
    return conjugate_gradients(system, max_steps=MAX_STEPS, tolerance=TOLERANCE).steps


def with_large_diagonal(kernels: SparseKernels, top: Level, box: Box, order: str) -> tuple[Level, Vector]:
    """Build the finest multigrid level and the right-hand side of the spectral test.

    The matrix of the level has an enlarged diagonal. The vectors and the coarser levels are those of `top`.
    """
    rows = kernels.stencil_rows(box, weights())
    permutation = kernels.order(rows, order)
    b = kernels.row_sums(rows, permutation)
    stencil = weights()
    stencil[13] *= LARGE
    rows = kernels.stencil_rows(box, stencil)
    kernels.scale(b, LARGE, b)
    for i, number in special_rows(box):
        first, end = int(rows.indptr[i]), int(rows.indptr[i + 1])
        rows.data[first + rows.indices[first:end].tolist().index(i)] *= number + 2
        b[int(permutation.old_to_new[i])] *= number + 2
    A = top.A.A
    stored = kernels.store(rows, permutation, A.values, A.vectors, A.storage)
    return replace(top, A=top.A.of_entries(stored)), b


def special_rows(box: Box) -> list[tuple[int, int]]:
    """Return the rows of this rank that are among the first nine rows of the global matrix.

    Each row is a pair (local index, global index).
    """
    rows = []
    for number in range(SPECIAL):
        place = (number % box.gnx, number // box.gnx % box.gny, number // (box.gnx * box.gny))
        x, y, z = (at - first for at, first in zip(place, box.origin))
        if all(0 <= at < n for at, n in zip((x, y, z), box.shape)):
            rows.append(((z * box.ny + y) * box.nx + x, number))
    return rows


def symmetry_test(
    kernels: SparseKernels, comm: Communicator, A: SparseMatrix, precondition: Preconditioner
) -> Symmetry:
    """Measure how far A and the preconditioner M^-1 deviate from symmetry, with two random vectors. Collective."""
    x, y, out = A.halo_vector(), A.halo_vector(), zeros(kernels, A.n, "fp64")
    for k, vector in enumerate((x, y)):
        A.own(vector)[:] = _random(kernels.xp, A.n, first=(2 * comm.rank + k) << 40)

    def dot(v: Vector, w: Vector) -> float:
        return allreduce_scalar(comm, kernels.dot(v, w), "sum", kernels.xp)

    def product(v: Vector, w: Vector) -> float:
        A.multiply(w, out)
        return dot(A.own(v), out)

    def preconditioned(v: Vector, w: Vector) -> float:
        return dot(A.own(v), A.own(precondition(A.own(w))))

    allowed = 2.0 * NORM_OF_A * dot(A.own(x), A.own(x)) * dot(A.own(y), A.own(y)) * EPSILON
    spmv, mg = (abs(form(x, y) - form(y, x)) / allowed for form in (product, preconditioned))
    return Symmetry(spmv, mg)


def _random(xp: Any, n: int, first: int) -> Vector:
    """Return pseudo-random entries in [1, 2) that depend only on the indices `first`, first + 1, …."""
    h = xp.arange(first, first + n, dtype=xp.int64)
    for factor in MIX:
        h = h * factor  # modulo 2^64
        h = h ^ (h >> 33)
    return 1.0 + xp.astype(h & (2**52 - 1), xp.float64) * 2.0**-52
