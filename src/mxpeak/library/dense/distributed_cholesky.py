"""Factor Hermitian positive definite distributed matrices from one triangle, and test whether a matrix may be one."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np

from mxpeak.comm.collectives import raise_first_error, validate_on_all
from mxpeak.distributed.symmetric import SymmetricMatrix, is_hermitian
from mxpeak.kernels.arrays import xp
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_ldl import ldl_factored
from mxpeak.library.dense.distributed_solving import (
    DistributedFactors,
    check_norms,
    computing,
    factored,
    factored_as,
    first_breakdown,
    grid_matrix,
    stored,
)
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.matrix_source import Source
from mxpeak.library.dense.symmetric import SymmetricKind, cholesky_or_lu, text_of
from mxpeak.library.outcomes import NotPositiveDefiniteError
from mxpeak.library.types import Array
from mxpeak.solvers.grid_cholesky import GridCholesky
from mxpeak.solvers.grid_factors import GridFactors
from mxpeak.solvers.symmetric_factors import shifts
from mxpeak.spans import Spans


def solve_by_structure(
    A: DistributedMatrix, b: Any, structure: SymmetricKind | str, precision: str, device: str, *, form: str, local: bool
) -> tuple[Array, SolveInfo]:
    """Solve a distributed system by the factorization that suits the structure of A, without warnings. Collective."""
    validate_on_all(A.comm, lambda: structure, text_of)

    def solve(factors: DistributedFactors) -> tuple[Array, SolveInfo]:
        return factors.solve_quietly(b, transposed=form, local=local)

    def by_lu() -> tuple[Array, SolveInfo]:
        return solve(factored(A, precision, device, b))

    if isinstance(structure, SymmetricKind):
        return solve(_factored_as(A, structure, precision, device, b))
    if structure == "auto" and _looks_definite(A):
        return cholesky_or_lu(lambda: solve(_factored(A, precision, device, b, lower=True)), by_lu)
    return by_lu()


def cho_factored(
    A: DistributedMatrix, structure: SymmetricKind, precision: str, device: str, b: Any = None
) -> DistributedCholeskyFactors:
    """Factor one triangle of A by Cholesky in the requested precision, or in the fastest one for `b`. Collective."""
    validate_on_all(A.comm, lambda: structure, text_of)
    return _factored(A, precision, device, b, lower=structure.lower)


def factored_by_structure(
    A: DistributedMatrix, structure: SymmetricKind | str, precision: str, device: str, b: Any = None
) -> DistributedFactors:
    """Factor a distributed matrix by the factorization that suits its structure. Collective."""
    validate_on_all(A.comm, lambda: structure, text_of)
    if structure == "auto" and _looks_definite(A):
        with suppress(NotPositiveDefiniteError):
            return _factored(A, precision, device, b, lower=True)
    if isinstance(structure, SymmetricKind):
        return _factored_as(A, structure, precision, device, b)
    return factored(A, precision, device, b)


def _factored_as(
    A: DistributedMatrix, structure: SymmetricKind, precision: str, device: str, b: Any
) -> DistributedFactors:
    """Factor one triangle of A by Cholesky, or by L S L^T if it may be indefinite. Collective."""
    if structure.definite:
        return _factored(A, precision, device, b, lower=structure.lower)
    return ldl_factored(A, structure, precision, device, b)


def _factored(A: DistributedMatrix, precision: str, device: str, b: Any, *, lower: bool) -> DistributedCholeskyFactors:
    return factored_as(DistributedCholeskyFactors, A, A.source.triangle(lower=lower), precision, device, b)


def _looks_definite(A: DistributedMatrix) -> bool:
    """Return whether A is Hermitian and has a positive diagonal. Collective."""
    cut = BlockCyclic(A.n, A.nb, A.grid.p, A.grid.P), BlockCyclic(A.n, A.nb, A.grid.q, A.grid.Q)
    hermitian = is_hermitian(A.grid, cut, A.source, xp)
    raise_first_error(A.comm, A.source.mistake())
    return hermitian


class DistributedCholeskyFactors(DistributedFactors):
    """The Cholesky factor of a positive definite distributed matrix, returned by `cho_factor`.

    All ranks must call the methods, and read `condition`, at the same point in the program.

    Attributes
    ----------
    A : DistributedMatrix
        Distributed matrix from which mxpeak computed the factor; only one triangle is read.
    precision : str
        Precision of the factor. The value changes to "fp64" if `solve` factors A again.
    condition : float
        Estimated one-norm condition number of A, without any scaling.
    """

    _engine: ClassVar = "cholesky"

    @staticmethod
    def _factors_in(precision: str, A: DistributedMatrix, source: Source, spans: Spans) -> GridFactors:
        """Factor one triangle of A in a precision; raise an error if A is not positive definite in fp64. Collective.

        In 16-bit formats, a larger shift is tried if the first one is not sufficient.
        """
        first, *larger = shifts(precision)
        factors = _factor_triangle(precision, A, source, spans, first)
        for shift in larger:
            if factors.singular:
                del factors  # free this memory before the next factorization
                factors = _factor_triangle(precision, A, source, spans, shift)
        if precision == "fp64":
            check_norms(factors)
            if factors.singular:
                other = "her" if A.parts == 2 else "sym"
                raise NotPositiveDefiniteError(
                    f"A is not positive definite: the leading minor of order {first_breakdown(factors, A)} of {A.n} "
                    f'is not positive; for an indefinite matrix, use assume_a="{other}" of solve, or LU by '
                    'assume_a="gen" or mxpeak.lu_factor(A) with both triangles of A'
                )
        return factors

    @staticmethod
    def _why_singular(factors: GridFactors, A: DistributedMatrix) -> str:
        return f"leading minor {first_breakdown(factors, A)} is not positive"


def _factor_triangle(precision: str, A: DistributedMatrix, source: Source, spans: Spans, shift: float) -> GridCholesky:
    """Generate one triangle of A in the storage type of `precision`, and factor it. Collective."""
    with computing(A.comm) as kernels:
        matrix = grid_matrix(A, source, partial(SymmetricMatrix, kernels=kernels, lower=bool(source.lower)))
        L = stored(matrix, A.comm, source, precision, spans)
        with np.errstate(all="ignore"):  # numbers beyond the range of fp32 are visible in the norms
            return GridCholesky(matrix, L, precision, kernels, spans, shift=shift)
