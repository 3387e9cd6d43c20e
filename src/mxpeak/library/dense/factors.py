"""LU factors of a matrix on one process, and the base class that they share with distributed factors."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, NoReturn

import numpy as np

from mxpeak.errors import Outcome
from mxpeak.kernels.arrays import complex_of
from mxpeak.kernels.contract import DenseKernels, Matrix
from mxpeak.kernels.contract.dense import Block, Triangle
from mxpeak.library.dense.info import (
    AGAIN,
    COARSER_FAILED,
    Estimates,
    SolveInfo,
    note_of_breakdown,
    note_of_columns,
    note_of_doubt,
    note_of_growth,
    note_of_low_accuracy,
    note_of_rows,
    note_of_singularity,
    note_of_underflow,
)
from mxpeak.library.dense.inputs import block, columns, form_of, lies_well, on_kernels, right_hand_side
from mxpeak.library.inputs import Input, check_finite, conjugate, device_for
from mxpeak.library.outcomes import SingularMatrixError, warned
from mxpeak.library.policy import (
    FASTEST,
    FASTEST_SCALED,
    choose_precision,
    fp64_refactoring_pays,
    max_gmres_steps,
    max_lagged_steps,
)
from mxpeak.library.types import roundoff, typed, with_precision_of, working_type
from mxpeak.perf.emulation import requested_emulation
from mxpeak.precision import PRECISIONS
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.accuracy import Accuracy, plain_lu, plain_lu_by_rows
from mxpeak.solvers.array_factors import (
    TINY,
    ArrayFactors,
    DenseBackend,
    factor,
    factor_in_fp64,
    factors_of_wider,
    lagged_factors,
)
from mxpeak.solvers.deflation import deflated
from mxpeak.solvers.forward_error import condition_if_unchanged, condition_number, error_bound
from mxpeak.solvers.refine import LOST, Solution, U, solve_equations, solve_in_range
from mxpeak.solvers.scaling import raised
from mxpeak.spans import Spans

#: Reason for fp64 factors if the pivots show that fp32 factors would be useless.
DECAYED = "pivots decay"
#: Order of the matrix whose factorization compiles the products of a precision; it has several panels.
COMPILED_ORDER = 100


class DenseFactors(ABC):
    """Base class of the factors on one process and on a process grid: the fallback to fp64, and the diagnostics."""

    _factors: Any
    _notes: tuple[str, ...]
    _gmres_steps: int
    _why: str
    _why_again: str = COARSER_FAILED
    _again: str = AGAIN

    @abstractmethod
    def _factor_in_fp64(self, spans: Spans) -> None:
        """Factor A in fp64 and replace the current factors."""

    def _refined(self, solve: Callable[[bool], tuple[Solution, bool]], spans: Spans, *, parts: int = 1) -> Solution:
        """Return the solution of `solve`.

        If the factors are not accurate enough, factor A again in fp64 and solve again.
        """
        solution, lower = solve(False)
        if self._may_fall_back:
            with spans("refine"):
                note = note_of_low_accuracy(self._factors, solution, self._gmres_steps, parts=parts, again=self._again)
            if note := note or self._note_of_hidden_singularity(solution):
                self._fall_back(spans, note)
                solution, _ = solve(lower)
        return solution

    @property
    def _may_fall_back(self) -> bool:
        """Return whether another factorization may be more accurate than the current one."""
        return bool(self._factors.precision != "fp64")

    def _note_of_hidden_singularity(self, solution: Solution) -> str:
        """Return a note if only fp64 factors can show whether A is singular, otherwise an empty string."""
        return ""

    def _note_of_failure(self, solution: Solution) -> str:
        """Return advice if refinement with fp64 factors failed for a known reason, otherwise an empty string."""
        return ""

    def _fall_back(self, spans: Spans, note: str) -> None:
        """Factor A in fp64, and add `note`, the reason, to the notes of these factors."""
        self._factor_in_fp64(spans)
        self._notes += (note,)

    def _info_of(self, solution: Solution, dtype: np.dtype[Any], **facts: Any) -> SolveInfo:
        """Return the diagnostics of a solution, with the notes of the factors and the additional `facts`."""
        factors, u = self._factors, roundoff(dtype)
        notes = self._notes + (f"x is beyond the range of {dtype}",) * solution.beyond_range
        failure = self._note_of_failure(solution)
        singular = not failure and solution.doubtful and factors.singular_to(u)
        if singular:
            notes += (note_of_singularity(factors.condition, dtype, solution.outcome),)
        lost = not singular and not solution.moved <= LOST
        notes += (note_of_columns(solution.moved),) * lost + (note_of_underflow(dtype),) * solution.underflows
        uneven = solution.outcome is Outcome.SOLVED and not (singular or lost or solution.even_rows)
        omega = (solution.rows or 0.0) if uneven else 0.0
        notes += (note_of_rows(omega),) * uneven
        notes += (failure,) * bool(failure)
        if notes == self._notes and solution.outcome is not Outcome.SOLVED:
            notes += (str(solution.outcome),)
        return SolveInfo(
            outcome=solution.outcome,
            factorization=factors.name,
            precision=factors.precision,
            iterations=solution.steps,
            scaled=factors.scaled,
            fallback=bool(self._notes),
            ill_conditioned=singular or lost or solution.underflows or omega * facts["n"] * u > LOST,
            u=u,
            message="\n".join(notes),
            why=self._why_again if self._notes else self._why,
            **facts,
        )


class LUFactors(DenseFactors):
    """The LU factors of a matrix on a single process, returned by `lu_factor`.

    Do not change A while you use the factors, because mxpeak computes residuals with A.

    Attributes
    ----------
    A : ndarray or tensor
        Matrix from which mxpeak computed the factors. If the entries are tiny, or their sums overflow, mxpeak scales
        `A` and the factors by a power of two.
    precision : str
        Precision of the factors.
    condition : float
        Estimated one-norm condition number ||A||_1·||A^-1||_1, without any scaling.
    """

    def __init__(
        self,
        backend: DenseBackend,
        A: Matrix,
        factors: ArrayFactors,
        spans: Spans,
        requested: str,
        *,
        notes: tuple[str, ...] = (),
        exponent: int = 0,
        why: str = "",
    ):
        self.A = A
        self._backend, self._factors, self._spans, self._notes = backend, factors, spans, notes
        self._exponent = exponent  # A was multiplied by 2^exponent
        self._gmres_steps = max_gmres_steps(A.shape[0], requested)
        self._why = why  # the reason for the precision of the factors
        self._may_refactor = requested == "auto"  # whether `solve` may factor A in fp64 if that is faster
        self._transposed: LUFactors | None = None
        self._in_fp64: LUFactors | None = None

    @property
    def precision(self) -> str:
        """Return the precision of the factors."""
        return self._factors.precision  # type: ignore[no-any-return]

    @property
    def condition(self) -> float:
        """Return the estimated one-norm condition number of A, without any scaling.

        mxpeak computes the estimate when you first read this property. The value is inf if the factors are so coarse
        that refinement with them does not converge.
        """
        return condition_number(self._factors)

    def __repr__(self) -> str:
        n = self.A.shape[0]
        return f"LUFactors({n}x{n} {self._backend.own}, precision={self.precision!r})"

    def solve(self, b: Any, *, transposed: bool | str = False) -> tuple[Any, SolveInfo]:
        """Solve A x = b with these factors.

        If the factors are not accurate enough, `solve` factors A again in fp64 and keeps the new factors. On the CPU
        with `precision="auto"`, `solve` also switches to fp64 factors if they are faster for this number of right-hand
        sides.

        Parameters
        ----------
        b : array_like or tensor
            Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k). `solve` does not modify b.
        transposed : bool or {"N", "T", "H"}, default False
            Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.

        Returns
        -------
        x : ndarray or tensor
            Solution in the common precision of A and b. If b is a tensor, x is also a tensor.
        info : SolveInfo
            Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times.

        Raises
        ------
        UsageError
            An argument is invalid.

        Warns
        -----
        IllConditionedWarning
            The solution x may have no correct digits, for example because A is singular to working precision.
        NotSolvedWarning
            The solution x is not finite, or it is less accurate than the result of a plain LU factorization.

        Examples
        --------
        >>> import mxpeak as mx
        >>> F = mx.lu_factor([[2.0, 1.0], [0.0, 4.0]])
        >>> F.solve([2.0, 5.0], transposed="T")[0]
        array([1., 1.])
        """
        return warned(*self.solve_quietly(b, form_of(transposed)))

    def solve_quietly(self, b: Any, form: str) -> tuple[Any, SolveInfo]:
        """Solve A x = b, A^T x = b or A^H x = b without warnings."""
        rhs = right_hand_side(b, self.A.shape[0])
        if self._is_narrower_than(rhs):
            return self._of_fp64_matrix().solve_quietly(b, form)
        if self._backend.kernels.device is None:
            device_for("cpu", rhs.device)  # raises the error that explains what to do if b is on a GPU
            self._refactor_for_many_rhs(columns(rhs))
        result = self._solve_form(rhs, form, LUFactors.solve_block)
        assert result is not None
        return result

    def _solve_form(
        self, rhs: Input, form: str, solve: Callable[[LUFactors, Block, Input], tuple[Any, SolveInfo] | None]
    ) -> tuple[Any, SolveInfo] | None:
        """Solve A x = b, A^T x = b or A^H x = b by a method of these factors or of those of A^T."""
        kernels, dtype = self._backend.kernels, self._backend.own
        conj = form == "H" and dtype.kind == "c"  # A^H x = b is A^T conj(x) = conj(b)
        B = block(rhs, dtype, kernels)
        result = solve(self if form == "N" else self._of_transpose(), kernels.xp.conj(B) if conj else B, rhs)
        return (conjugate(result[0]), result[1]) if result and conj else result

    def _refactor_for_many_rhs(self, rhs: int) -> None:
        """Factor A in fp64 if this takes less time than refining `rhs` solutions, and if the precision is "auto"."""
        coarser = PRECISIONS[self.precision].u > roundoff(self._backend.own)
        if self._may_refactor and coarser and fp64_refactoring_pays(self.A.shape[0], rhs):
            self._factor_in_fp64(self._spans)
            self._why = "fastest for this number of right-hand sides"

    def _is_narrower_than(self, b: Input) -> bool:
        """Return whether A is in fp32 and b in fp64."""
        return roundoff(working_type(b.dtype)) < roundoff(self._backend.own)

    def _of_fp64_matrix(self) -> LUFactors:
        """Return factors of A in fp64 that share the arrays of these factors, for right-hand sides in fp64.

        They are created on first use. Residuals then need a copy of A in fp64.
        """
        if self._in_fp64 is None:
            kernels, twin = self._backend.kernels, copy(self)
            twin._backend = backend_of(kernels, self._backend.fp64)
            twin._spans, twin._transposed = Spans(stopwatch=kernels.stopwatch), None
            twin.A = kernels.xp.astype(self.A, getattr(kernels.xp, self._backend.fp64.name))
            twin._factors = factors_of_wider(self._factors, twin._matrix_of(twin.A))
            if twin._factors.may_hide_singularity and not twin._factors.lagged:
                twin._fall_back(twin._spans, note_of_doubt(twin._factors.probe))
            self._in_fp64 = twin
        return self._in_fp64

    def _of_transpose(self) -> LUFactors:
        """Return factors of A^T that share the arrays of these factors. They are created on first use."""
        if self._transposed is None:
            spans = Spans(stopwatch=self._backend.kernels.stopwatch)
            factors = self._factors.transposed()
            if factors is None:
                self._fall_back(spans, note_of_doubt(self._factors.probe))
                factors = self._factors.transposed()
            twin = copy(self)
            twin.A, twin._factors, twin._spans = self.A.T, factors, spans
            self._transposed = twin
        return self._transposed

    def solve_block(self, B: Block, b: Input, start: Block | None = None) -> tuple[Any, SolveInfo]:
        """Solve for the right-hand sides B in the kernels' format; return x in the format of b, and diagnostics.

        Refinement begins with `start`, or with the solution by the factors if `start` is None.
        """
        kernels = self._backend.kernels
        # The time of the factorization belongs to the first solve.
        spans, self._spans = self._spans, Spans(stopwatch=kernels.stopwatch)
        if not columns(b):
            solution = Solution(B, B, None, Outcome.SOLVED, 0.0, 0, [], rows=0.0, X=B)
        else:
            solution = self._refined(lambda lower: self._solve(B, spans, lower=lower, start=start), spans)
        return self._result(solution, b, spans)

    def _result(self, solution: Solution, b: Input, spans: Spans) -> tuple[Any, SolveInfo]:
        """Return x in the format of b, and the diagnostics."""
        kernels, k, n, dtype = self._backend.kernels, columns(b), len(self.A), self._backend.own
        X, factors = solution.X, self._factors
        with kernels.computing():  # infinite parts cause no warnings
            x = X if X.shape[1] == k else complex_of(X[:, :k], X[:, k:], kernels.xp)
        Y = kernels.xp.asarray(solution.Y, copy=True)  # the user may change x
        row_error: Any = Estimates.from_values((solution.rows,))
        if solution.rows is None:
            row_error = factors.matrix.A, Y, solution.B, solution.eta, kernels
        info = self._info_of(
            solution,
            dtype,
            n=n,
            rhs=k,
            emulated=factors.emulated,
            fp64=_arithmetic(factors, kernels),
            backward_error=solution.eta,
            times=spans.times,
            history=tuple(solution.history),
            lagged=factors.lagged,
            _estimates=Estimates(
                lambda: (
                    condition_if_unchanged(factors, Y, solution.B, solution.eta),
                    None if factors.lagged else factors.growth,
                )
            ),
            _row_error=row_error,
            _bounds=Estimates(lambda: error_bound(factors, Y, solution.B, solution.eta, k)),
        )
        return b.result(kernels.xp.reshape(x, b.shape)), info

    def _solve(self, B: Block, spans: Spans, *, lower: bool, start: Block | None = None) -> tuple[Solution, bool]:
        """Solve for B with the current factors by `solve_in_range`, without a fallback to fp64."""
        factors, matrix = self._factors, self._factors.matrix
        n, same_type = factors.n, factors.lagged or factors.dtype == self.A.dtype
        enough = plain_lu(n, B.shape[1], is_complex=matrix.is_complex)
        target = enough if same_type and start is None else 1.0 / n
        accuracy = Accuracy(target, enough, plain_lu_by_rows(n, is_complex=matrix.is_complex))
        equations = factors.equations(scaled=False)
        first = factors.equations(scaled=True) if factors.scaled else equations
        R = matrix.balance.R if factors.scaled else None
        steps, systems = self._gmres_steps, {"equations": equations, "first": first}
        with spans("refine"), factors.computing():
            return solve_in_range(
                equations,
                B,
                R,
                lambda V, begin: solve_equations(factors, V, accuracy, steps, start=begin, **systems),
                exponent=self._exponent,
                lower=lower,
                start=start,
            )

    def _note_of_failure(self, solution: Solution) -> str:
        factors = self._factors
        known = solution.outcome is Outcome.SOLVED or solution.beyond_range or factors.lagged
        if known or factors.precision != "fp64" or factors.name != "LU" or factors.growth * factors.n * U < 1.0:
            return ""
        return note_of_growth(factors.growth)

    def lagged(self, A: Input) -> LUFactors | None:
        """Return factors of another matrix A of the same type that use the factors of this matrix as a preconditioner.

        Return None if these factors contain a correction that is valid only for their own matrix.
        """
        if self._exponent or not self._factors.may_lag:
            return None
        kernels, twin = self._backend.kernels, copy(self)
        M = A.on(kernels.device, self._backend.own)
        twin.A = M if lies_well(M) else kernels.xp.asarray(M, copy=True)
        with kernels.computing():
            factors = lagged_factors(self._factors, self._matrix_of(twin.A), exact_norms=False)
        twin._factors, twin._transposed, twin._in_fp64, twin._notes = factors, None, None, ()
        twin._spans, twin._gmres_steps = Spans(stopwatch=kernels.stopwatch), max_lagged_steps(len(twin.A))
        return twin

    def _matrix_of(self, A: Matrix) -> Matrix | Triangle:
        """Return the matrix whose entries are stored in A."""
        return A

    @property
    def expected_steps(self) -> float:
        """Return the number of steps that lagged factors are expected to need, or inf if they are not suitable."""
        steps: float = self._factors.convergence.steps
        return steps

    def solve_if_close(self, b: Any, form: str) -> tuple[Any, SolveInfo] | None:
        """Solve with lagged factors, or return None if the matrix of the factors is not close enough to A."""
        rhs = right_hand_side(b, self.A.shape[0])
        factors = self._of_fp64_matrix() if self._is_narrower_than(rhs) else self
        return factors._solve_form(rhs, form, LUFactors.block_if_close)

    def block_if_close(self, B: Block, b: Input, start: Block | None = None) -> tuple[Any, SolveInfo] | None:
        """Solve for the right-hand sides B, or return None if refinement does not reach the accuracy of a new LU.

        Refinement begins with `start`, or with the solution by the factors if `start` is None.
        """
        spans, self._spans = self._spans, Spans(stopwatch=self._backend.kernels.stopwatch)
        if not columns(b):
            return self.solve_block(B, b)
        solution, _ = self._solve(B, spans, lower=False, start=start)
        if solution.outcome is not Outcome.SOLVED or not solution.even_rows or solution.doubtful:
            return None
        return self._result(solution, b, spans)

    def _factor_in_fp64(self, spans: Spans) -> None:
        self._factors, self._transposed = fp64_factors(self._backend, self.A, spans), None


class EmptyFactors(LUFactors):
    """The factors of a matrix of order 0, for which every solution x is empty."""

    def __init__(self, A: Input, precision: str, dtype: np.dtype[Any], kernels: DenseKernels, name: str = "LU"):
        self.A, self._dtype, self._name = A.array, dtype, name
        self._precision = choose_precision(0, dtype, precision, 1, kernels.device).name

    @property
    def precision(self) -> str:
        """Return the precision in which a nonempty matrix of this type would be factored."""
        return self._precision

    @property
    def condition(self) -> float:
        """Return 0, the condition number of an empty matrix."""
        return 0.0

    def __repr__(self) -> str:
        return f"{self._name}Factors(0x0 {self._dtype}, precision={self.precision!r})"

    def solve(self, b: Any, *, transposed: bool | str = False) -> tuple[Any, SolveInfo]:
        """Return an empty x with the shape of b, and its diagnostics."""
        return self.solve_quietly(b, form_of(transposed))

    def solve_quietly(self, b: Any, form: str) -> tuple[Any, SolveInfo]:
        """Return an empty x with the shape of b, and its diagnostics."""
        rhs = right_hand_side(b, 0)
        dtype = with_precision_of(self._dtype, np.result_type(self._dtype, working_type(rhs.dtype)))
        return self.solve_empty(rhs, dtype)

    def solve_empty(self, b: Input, dtype: np.dtype[Any] | None = None) -> tuple[Any, SolveInfo]:
        """Return an empty x and its diagnostics for a b that `right_hand_side` has already validated.

        dtype    the type that determines the precision of x; None for the type of the factors
        """
        dtype = dtype or self._dtype
        is_complex = "c" in (dtype.kind, working_type(b.dtype).kind)
        x = np.empty(b.shape, typed(is_complex, wide=roundoff(dtype) < 2.0**-24))
        info = SolveInfo(
            n=0,
            rhs=columns(b),
            factorization=self._name,
            precision=self._precision,
            iterations=0,
            backward_error=0.0,
            u=roundoff(dtype),
            times={},
            history=(),
            _estimates=Estimates.from_values((0.0, 1.0)),
            _row_error=Estimates.from_values((0.0,)),
            _bounds=Estimates.from_values((0.0, 0.0)),
        )
        return b.result(x), info


def factors_of(
    kernels: DenseKernels, A: Input, precision: str, dtype: np.dtype[Any], rhs: int, spans: Spans, *, decayed: bool
) -> LUFactors:
    """Factor A in the chosen precision, or in fp64 if that precision fails.

    If `decayed`, an earlier factorization showed decaying pivots, and A is factored in fp64 directly.
    """
    if not decayed and choose_precision(A.shape[0], dtype, precision, rhs, kernels.device).name != "fp64":
        if factors := low_precision_factors(kernels, A, precision, dtype, rhs, spans):
            return factors
        decayed = True
    backend, M, exponent = _prepared(kernels, A, dtype, "fp64")
    why = DECAYED if decayed else choose_precision(A.shape[0], dtype, precision, rhs, kernels.device).reason
    fp64 = fp64_factors(backend, M, spans)
    return _of_array(backend, fp64, spans, precision, exponent=exponent, why=why)


def low_precision_factors(
    kernels: DenseKernels, A: Input, precision: str, dtype: np.dtype[Any], rhs: int, spans: Spans
) -> LUFactors | None:
    """Factor A in fp32 or a 16-bit precision; return None if decaying pivots show that such factors are useless."""
    chosen, why = choose_precision(A.shape[0], dtype, precision, rhs, kernels.device)
    backend, M, exponent = _prepared(kernels, A, dtype, chosen)
    coarser = roundoff(dtype) < PRECISIONS[chosen].u
    notes: tuple[str, ...] = ()
    watch_pivots = precision == "auto" and kernels.device is None and coarser
    low = factor(backend, M, chosen, spans, unless_decayed=watch_pivots)
    if low is None:
        return None
    factors = low
    if low.precision != chosen:
        why = "its diagonal dominates"
    if low.singular:
        notes = (note_of_breakdown(chosen, f"pivot {low.singular} is zero"),)
        factors = fp64_factors(backend, M, spans)
    elif coarser and low.may_hide_singularity:  # a hidden singularity must be excluded before refinement
        factors, notes = _deflated(backend, M, low, spans)
    return _of_array(backend, factors, spans, precision, notes=notes, exponent=exponent, why=why)


def _of_array(
    backend: DenseBackend, factors: ArrayFactors, spans: Spans, precision: str, *, exponent: int, why: str, **facts: Any
) -> LUFactors:
    """Return the factors of a matrix that was multiplied by 2^exponent before the factorization."""
    A, exponent = factors.matrix.A, exponent + factors.matrix.exponent
    why = FASTEST_SCALED if factors.scaled and why == FASTEST else why
    return LUFactors(backend, A, factors, spans, precision, exponent=exponent, why=why, **facts)


def backend_of(kernels: DenseKernels, dtype: np.dtype[Any]) -> DenseBackend:
    """Return a backend: the kernels, the type of A, and the 32-bit and 64-bit types of its factors."""
    is_complex = dtype.kind == "c"
    return DenseBackend(kernels, dtype, typed(is_complex, wide=False), typed(is_complex, wide=True), _compile, _check)


def fp64_factors(backend: DenseBackend, A: Matrix, spans: Spans) -> ArrayFactors:
    """Factor A in fp64; raise a SingularMatrixError if a pivot is zero."""
    factors = factor_in_fp64(backend, A, spans)
    if factors.singular:
        raise_singular(factors.singular, factors.n, factors.least_size())
    return factors


def raise_singular(pivot: int, n: int, least: float, *, on_grid: bool = False) -> NoReturn:
    """Raise a SingularMatrixError for zero pivot number `pivot`.

    `least` is the smallest nonzero number that the elimination produced.
    """
    size = "exactly zero"
    if least < TINY:
        size = "zero in fp64, exactly or by underflow, because the elimination produced numbers as small as "
        size += f"{least:.1e}"
    raise SingularMatrixError(
        f"A is singular: pivot {pivot} of {n} is {size}; check A for linearly dependent rows or columns"
        + ("" if on_grid else ", or use mxpeak.lstsq for a least-squares solution")
    )


def _prepared(
    kernels: DenseKernels, A: Input, dtype: np.dtype[Any], precision: str
) -> tuple[DenseBackend, Matrix, int]:
    """Convert A for the kernels, and multiply a matrix of tiny entries by 2^exponent.

    Returns the backend, the matrix and the exponent.
    """
    M = on_kernels(A, dtype, precision, kernels)
    with kernels.computing():
        return backend_of(kernels, dtype), *raised(kernels.xp, M)


def _deflated(
    backend: DenseBackend, A: Matrix, factors: ArrayFactors, spans: Spans
) -> tuple[ArrayFactors, tuple[str, ...]]:
    """Deflate the last pivot of the factors, or factor A in fp64 if deflation fails.

    Returns the factors and, after a fallback, a note with the reason.
    """
    seen = factors.probe  # `deflated` overwrites the last pivot
    if not seen * PRECISIONS["fp32"].u >= 1.0:
        seen = factors.condition
    with spans("deflate"):
        safe = deflated(factors)
    if safe is not None:
        return safe, ()
    return fp64_factors(backend, A, spans), (note_of_doubt(seen),)


def _compile(kernels: DenseKernels, low: np.dtype[Any], precision: str) -> None:
    """Compile the host's matrix products for a precision by factoring a small matrix once."""
    what = f"mxpeak.solve, first products of {precision} numbers"
    compile_once(what, ("units", precision), lambda: kernels.factor(np.eye(COMPILED_ORDER, dtype=low), precision))


def _arithmetic(factors: ArrayFactors, kernels: DenseKernels) -> str:
    """Return native, emulated, or "unknown" if the environment requests that the library emulates fp64 products."""
    by_library = factors.precision == "fp64" and factors.fp64 == "native" and kernels.device is not None
    requested = by_library and requested_emulation(os.environ, kernels.device.architecture) is not None
    return "unknown" if requested else factors.fp64


def _check(A: Matrix | Triangle, kernels: DenseKernels) -> None:
    """Raise a UsageError if A, or the triangle that is read, contains NaN or Inf."""
    xp = kernels.xp
    if isinstance(A, Triangle):
        half = xp.tril(A.array) if A.lower else xp.triu(A.array)
        if A.hermitian and xp.isdtype(half.dtype, "complex floating"):
            at = xp.arange(len(A))
            half[at, at] = xp.astype(xp.real(half.diagonal()), half.dtype)
        A = half
    check_finite(A, "A", xp)
