"""Solve symmetric and Hermitian systems from one triangle, for `solve` with `assume_a` and for `cho_factor`.

    pos     Cholesky, A = L L^H         her     A = L D L^H         sym     A = L D L^T

The factors are refined, and replaced by fp64 factors, in the same way as those of an LU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.contract import DenseKernels
from mxpeak.kernels.contract.dense import Triangle
from mxpeak.library.dense.factors import EmptyFactors, LUFactors, backend_of, raise_singular
from mxpeak.library.dense.info import SolveInfo, note_of_breakdown, note_of_doubt
from mxpeak.library.dense.inputs import block, columns, lies_well, on_kernels
from mxpeak.library.dense.lapack_solver import LETTERS, info_of, solve_by_cholesky
from mxpeak.library.dense.small_cholesky import kernel_for, solve_by_small_cholesky, suits_small_cholesky
from mxpeak.library.inputs import Input, conjugate
from mxpeak.library.outcomes import NotPositiveDefiniteError
from mxpeak.library.policy import choose_precision, own_precision_is_fastest
from mxpeak.library.types import Array, roundoff, with_precision_of, working_type
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.array_factors import DenseBackend
from mxpeak.solvers.factorization import coarser_than_fp32
from mxpeak.solvers.scaling import raised_triangle
from mxpeak.solvers.symmetric_factors import CHOLESKY, LDL, SymmetricFactors, factor_triangle
from mxpeak.spans import Spans

#: Order of the tiles in which a matrix is compared with its transpose, so that both stay in the cache.
TILE = 256
#: SciPy's names of the structures that `assume_a` accepts, and "auto".
STRUCTURES = {
    **dict.fromkeys(("gen", "general"), "gen"),
    **dict.fromkeys(("pos", "positive definite"), "pos"),
    **dict.fromkeys(("sym", "symmetric"), "sym"),
    **dict.fromkeys(("her", "hermitian"), "her"),
    "auto": "auto",
}


class SymmetricKind(NamedTuple):
    """The properties of a symmetric matrix: the triangle that is read, its kind of symmetry and its definiteness."""

    lower: bool
    hermitian: bool
    definite: bool

    @property
    def engine(self) -> str:
        """Return the name of the factorization in `library.policy`."""
        return "cholesky" if self.definite else "ldl"

    @property
    def name(self) -> str:
        """Return the name of the factorization."""
        return CHOLESKY if self.definite else LDL

    def conjugates(self, form: str, dtype: np.dtype[Any]) -> bool:
        """Return whether A^T x = b (form "T") or A^H x = b ("H") is solved as A conj(x) = conj(b)."""
        return dtype.kind == "c" and form == ("T" if self.hermitian else "H")


def structure_of(assume_a: Any, *, lower: Any) -> SymmetricKind | str:
    """Return the structure that `assume_a` names, or "gen" or "auto"; raise a UsageError for other values."""
    if not isinstance(assume_a, str) or assume_a not in STRUCTURES:
        raise UsageError(f"unknown assume_a {assume_a!r}; use one of {', '.join(sorted(set(STRUCTURES.values())))}")
    if not isinstance(lower, bool | np.bool_):
        raise UsageError(f"lower = {lower!r} is not valid; use True to read the lower triangle, or False for the upper")
    name = STRUCTURES[assume_a]
    return name if name in ("gen", "auto") else SymmetricKind(bool(lower), name != "sym", name == "pos")


def text_of(structure: SymmetricKind | str) -> str:
    """Return the arguments `assume_a` and `lower` that name a structure."""
    if isinstance(structure, str):
        return f"assume_a={structure!r}"
    name = "pos" if structure.definite else "her" if structure.hermitian else "sym"
    return f"assume_a={name!r}, lower={structure.lower}"


class TriangleFactors(LUFactors):
    """The Cholesky or L D L^T factors of a matrix on a single process, of which one triangle is read."""

    @property
    def _triangle(self) -> Triangle:
        """Return the triangle of A that is read."""
        triangle = self._factors.matrix.A
        assert isinstance(triangle, Triangle)
        return triangle

    def __repr__(self) -> str:
        n = len(self._triangle)
        return f"{type(self).__name__}({n}x{n} {self._backend.own}, precision={self.precision!r})"

    def _of_transpose(self) -> LUFactors:
        """Return factors of A^T: these factors, or their conjugate for a complex Hermitian matrix."""
        if not (self._triangle.hermitian and self._backend.own.kind == "c"):
            return self
        return super()._of_transpose()

    def _matrix_of(self, A: Array) -> Triangle:
        return Triangle(A, self._triangle.lower, self._triangle.hermitian)

    def _factor_in_fp64(self, spans: Spans) -> None:
        definite = self._factors.name == CHOLESKY
        self._factors = _fp64_factors(self._backend, self._triangle, spans, definite=definite)
        self._transposed = None


class CholeskyFactors(TriangleFactors):
    """The Cholesky factor of a positive definite matrix on a single process, returned by `cho_factor`.

    Do not change A while you use the factor, because mxpeak computes residuals with A.

    Attributes
    ----------
    A : ndarray or tensor
        Matrix from which mxpeak computed the factor; only one triangle is read. If the entries are tiny, or their
        sums overflow, mxpeak scales `A` and the factor by a power of two.
    precision : str
        Precision of the factor.
    condition : float
        Estimated one-norm condition number ||A||_1·||A^-1||_1, without any scaling.
    """


class EmptyCholesky(EmptyFactors, CholeskyFactors):
    """The Cholesky factor of a matrix of order 0, for which every solution x is empty."""


def solve_structured(
    kernels: DenseKernels, A: Input, b: Input, precision: str, structure: SymmetricKind, form: str
) -> tuple[Any, SolveInfo]:
    """Solve A x = b for validated inputs from one triangle of A, and return x and the diagnostics, without warnings."""
    of_A, of_b = working_type(A.dtype), working_type(b.dtype)
    dtype = with_precision_of(of_A, np.result_type(of_A, of_b))
    conj = structure.conjugates(form, dtype)
    b = replace(b, array=conjugate(b.array)) if conj else b
    x, info = _solve(kernels, A, b, precision, structure, dtype)
    return conjugate(x) if conj else x, info


def _solve(
    kernels: DenseKernels, A: Input, b: Input, precision: str, structure: SymmetricKind, dtype: np.dtype[Any]
) -> tuple[Any, SolveInfo]:
    n, rhs = A.shape[0], columns(b)
    if not n:
        return EmptyFactors(A, precision, dtype, kernels, structure.name).solve_empty(b)
    same_kind = dtype.kind == working_type(b.dtype).kind
    if structure.definite and kernels.device is None and same_kind and _own(n, rhs, dtype, precision):
        result = solve_in_own_precision(A.on(None, dtype), b.on(None, dtype), lower=structure.lower)
        if result is not None:
            return b.result(result[0]), result[1]
    B = block(b, dtype, kernels)
    spans = Spans(stopwatch=kernels.stopwatch)
    return factors_of_triangle(kernels, A, precision, dtype, B.shape[1], spans, structure).solve_block(B, b)


def _own(n: int, rhs: int, dtype: np.dtype[Any], precision: str) -> bool:
    """Return whether LAPACK's Cholesky factorization in the type of A is the fastest."""
    return own_precision_is_fastest(n, rhs, dtype, precision, "cholesky")


def solve_plain(A: Any, b: Any, structure: SymmetricKind | str) -> tuple[Any, SolveInfo] | None:
    """Solve with LAPACK if A is positive definite, and A and b are NumPy arrays of one type and small order.

    Returns None for other arguments, or if a check fails.
    """
    if not (isinstance(structure, SymmetricKind) and structure.definite and type(A) is np.ndarray is type(b)):
        return None
    n = len(A) if A.ndim == 2 else 0
    if not (0 < n == A.shape[1] and 1 <= b.ndim <= 2 and n == len(b) and A.dtype == b.dtype and A.dtype in LETTERS):
        return None
    if not _own(n, b.size // n, A.dtype, "auto"):
        return None
    return solve_in_own_precision(A, b, lower=structure.lower)


def cholesky_or_lu(
    by_cholesky: Callable[[], tuple[Any, SolveInfo]], by_lu: Callable[[], tuple[Any, SolveInfo]]
) -> tuple[Any, SolveInfo]:
    """Solve by Cholesky, or by LU if A is not positive definite; the diagnostics of LU then contain a note."""
    begin = time.perf_counter()
    try:
        return by_cholesky()
    except NotPositiveDefiniteError as error:
        reason, time_s = str(error).partition(";")[0].removeprefix("A is "), time.perf_counter() - begin
    x, info = by_lu()
    note = f"A is symmetric or Hermitian, but {reason}; LU factored A"
    message = "\n".join(filter(None, (note, info.message)))
    return x, replace(info, message=message, times={"cholesky": time_s, **info.times})


def mirrored(A: Input, structure: SymmetricKind) -> Input:
    """Return a stack of matrices with both triangles, computed from the triangle that is read."""
    dtype = working_type(A.dtype)
    M = A.on(None, dtype)
    half, strict = (np.tril(M), np.tril(M, -1)) if structure.lower else (np.triu(M), np.triu(M, 1))
    across = np.swapaxes(strict, -1, -2)
    if structure.hermitian and dtype.kind == "c":
        diagonal = np.einsum("...ii->...i", half)
        diagonal.imag = 0.0
        across = np.conj(across)
    return Input(A.name, half + across, dtype, A.shape, "cpu")


def solve_in_own_precision(A: Array, b: Array, *, lower: bool) -> tuple[Any, SolveInfo] | None:
    """Solve a positive definite system in the type of A and b, or return None if a check fails."""
    A = A if A.flags.forc or lies_well(A) else np.array(A)
    triangle, compiled = Triangle(A, lower, True), suits_small_cholesky(A, b)
    if compiled:
        kernel_for(A.dtype)  # compile the kernel, or read it from disk, before the time measurement starts
    begin = time.perf_counter()
    solution = solve_by_small_cholesky(triangle, b) if compiled else solve_by_cholesky(triangle, b)
    if solution is None or not solution.enough:
        return None
    times = {"solve": time.perf_counter() - begin}
    why = choose_precision(len(A), A.dtype, "auto", b.size // len(A), engine="cholesky").reason
    return solution.X, info_of(solution, triangle, b, times, why)


def factors_of_triangle(
    kernels: DenseKernels,
    A: Input,
    precision: str,
    dtype: np.dtype[Any],
    rhs: int,
    spans: Spans,
    structure: SymmetricKind,
) -> TriangleFactors:
    """Factor A in the chosen precision, or in fp64 if that precision fails."""
    chosen, why = choose_precision(A.shape[0], dtype, precision, rhs, kernels.device, structure.engine)
    _check_support(kernels, chosen, dtype, structure)
    backend, triangle, exponent = _prepared(kernels, A, dtype, chosen, structure)
    definite, notes = structure.definite, tuple[str, ...]()
    factors = factor_triangle(backend, triangle, chosen, spans, definite=definite)
    if factors.singular and chosen == "fp64":
        _raise_breakdown(factors)
    reason = ""
    if factors.singular:
        minor = f"leading minor {factors.singular} is not positive" if definite else f"pivot {factors.singular} is zero"
        reason = note_of_breakdown(chosen, minor, factors.name)
    elif roundoff(dtype) < PRECISIONS[chosen].u and factors.may_hide_singularity:
        reason = note_of_doubt(factors.condition, chosen, factors.name)
    if reason:
        notes, factors = (reason,), _fp64_factors(backend, triangle, spans, definite=definite)
    kind = CholeskyFactors if definite else TriangleFactors
    array, exponent = factors.matrix.A.array, exponent + factors.matrix.exponent
    return kind(backend, array, factors, spans, precision, notes=notes, exponent=exponent, why=why)


def _check_support(kernels: DenseKernels, precision: str, dtype: np.dtype[Any], structure: SymmetricKind) -> None:
    """Raise a UsageError if L D L^T factors do not exist in this precision or on this device."""
    if structure.definite:
        return
    if coarser_than_fp32(precision):
        raise UsageError(
            f'precision="{precision}" needs products of rounded operands, which LDL^T factors do not use; use '
            'precision="fp32", or assume_a="gen"'
        )
    if dtype.kind == "c" and structure.hermitian and kernels.device is not None and kernels.device.is_gpu:
        raise UsageError(
            'assume_a="her" needs LDL^H factors of complex matrices, which the GPU library does not have; use '
            'assume_a="gen", or "pos" if A is positive definite'
        )


def _fp64_factors(backend: DenseBackend, A: Triangle, spans: Spans, *, definite: bool) -> SymmetricFactors:
    """Factor A in fp64; raise an error if it is not positive definite, or if a pivot of L D L^T is zero."""
    factors = factor_triangle(backend, A, "fp64", spans, definite=definite)
    if factors.singular:
        _raise_breakdown(factors)
    return factors


def _raise_breakdown(factors: SymmetricFactors) -> NoReturn:
    """Raise the error for a matrix that is not positive definite, or singular."""
    if factors.name != CHOLESKY:
        raise_singular(factors.singular, factors.n, 1.0)
    other = "her" if factors.matrix.is_complex else "sym"
    raise NotPositiveDefiniteError(
        f"A is not positive definite: the leading minor of order {factors.singular} of {factors.n} is not positive; "
        f'for an indefinite matrix, use assume_a="{other}" of solve, or LU by assume_a="gen" or lu_factor'
    )


def _prepared(
    kernels: DenseKernels, A: Input, dtype: np.dtype[Any], precision: str, structure: SymmetricKind
) -> tuple[DenseBackend, Triangle, int]:
    """Convert A for the kernels, and multiply a matrix of tiny entries by 2^exponent."""
    M = on_kernels(A, dtype, precision, kernels)
    with kernels.computing():
        triangle, exponent = raised_triangle(kernels.xp, Triangle(M, structure.lower, structure.hermitian))
    return backend_of(kernels, dtype), triangle, exponent


def detected(kernels: DenseKernels, A: Input) -> SymmetricKind | None:
    """Return the structure of a symmetric or Hermitian A with a positive diagonal, otherwise None.

    One row and one column are compared first. All entries are read only if these are equal.
    """
    if not A.shape[0]:
        return None
    M, xp, n = A.on(kernels.device, working_type(A.dtype)), kernels.xp, A.shape[0]
    is_complex = working_type(A.dtype).kind == "c"

    def equal(rows: slice, columns: slice) -> bool:
        across = M[columns, rows].T
        return bool(xp.all(M[rows, columns] == (xp.conj(across) if is_complex else across)))

    diagonal = M.diagonal()
    if not bool(xp.all((xp.real(diagonal) if is_complex else diagonal) > 0.0)):
        return None
    whole = slice(0, n)
    if not (equal(slice(0, 1), whole) and equal(slice(n // 2, n // 2 + 1), whole)):
        return None
    starts = range(0, n, TILE)
    tiles = ((slice(i, i + TILE), slice(j, j + TILE)) for i in starts for j in starts if j <= i)
    return SymmetricKind(lower=True, hermitian=True, definite=True) if all(equal(*tile) for tile in tiles) else None
