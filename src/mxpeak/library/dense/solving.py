"""solve and lu_factor: which precision, what to do where it fails, and what to tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from typing import Any

import numpy as np

from mxpeak.errors import Outcome, UsageError
from mxpeak.kernels import choose
from mxpeak.kernels.contract import DenseKernels, Matrix
from mxpeak.kernels.contract.dense import Block
from mxpeak.library.dense.deflation import deflated
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_info import DistributedInfo
from mxpeak.library.dense.distributed_solving import DistributedFactors, factored
from mxpeak.library.dense.factoring import Estimates, Factors, coarse, factor, factor_in_fp64, most_condition
from mxpeak.library.dense.info import (
    LOST,
    SolveInfo,
    note_of_breakdown,
    note_of_coarseness,
    note_of_columns,
    note_of_doubt,
    note_of_singularity,
    note_of_underflow,
    note_of_uneven_rows,
)
from mxpeak.library.dense.inputs import block, columns, form_of, lies_well, matrix, on_kernels, right_hand_side
from mxpeak.library.dense.lapack_solver import LETTERS, Direct, solve_directly, told
from mxpeak.library.dense.range_scaling import centred, loses, raised, restored
from mxpeak.library.dense.refinement import NOTHING, Refined, backward_errors, condition_seen, largest, refined
from mxpeak.library.dense.row_errors import row_errors, sizes_of_terms
from mxpeak.library.dense.small_lu import kernel_for, solve_by_elimination, suits_elimination
from mxpeak.library.dense.stack import StackInfo, solve_stack, stack_of
from mxpeak.library.inputs import Input, conjugate, device_for, read
from mxpeak.library.outcomes import AnyInfo, warned
from mxpeak.library.policy import choose_precision, fp64_refactoring_pays, max_gmres_steps, own_precision_is_fastest
from mxpeak.library.types import Array, roundoff, typed, with_precision_of, working_type
from mxpeak.precision import PRECISIONS
from mxpeak.spans import Spans

#: Why factors are fp64's where those of fp32 would be in vain.
FADED = "pivots decay"


def solve(
    A: Any,
    b: Any,
    *,
    transposed: bool | str = False,
    precision: str = "auto",
    device: str = "auto",
    local: bool = False,
) -> tuple[Any, SolveInfo | StackInfo | DistributedInfo]:
    """Solve A x = b to the accuracy of the input's data type.

    `solve` factors A in the fastest precision that allows this accuracy, and then refines x. If low-precision factors
    fail, `solve` factors A again in fp64.

    Parameters
    ----------
    A : array_like, tensor or DistributedMatrix
        Square matrix of shape (n, n) in any memory order, or a stack of matrices of shape (..., n, n). `solve` does not
        modify A.
    b : array_like, tensor or callable
        Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k). If A is a stack, use the shape
        (n,) or (..., n, k). If A is a DistributedMatrix, b can also be a function of the row indices.
    transposed : bool or {"N", "T", "H"}, default False
        Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.
    precision : {"auto", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8"}, default "auto"
        Precision of the factors.
    device : str, default "auto"
        Use "auto" to solve on the device of the tensors (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".
    local : bool, default False
        If True, b and x contain only the rows of this rank. This option requires a DistributedMatrix.

    Returns
    -------
    x : ndarray or tensor
        Solution in the common data type of A and b. If b is a tensor, x is also a tensor.
    info : SolveInfo, StackInfo or DistributedInfo
        Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times. The type
        is StackInfo for a stack, DistributedInfo for a DistributedMatrix, and SolveInfo otherwise.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not square, not finite or not numeric. This exception is also a
        ValueError.
    SingularMatrixError
        A pivot is exactly zero. This exception is also a numpy.linalg.LinAlgError.
    ResourceError
        The device does not exist, or there is not enough memory.

    Warns
    -----
    IllConditionedWarning
        The solution x may have no correct digits, for example because A is singular to working precision.
    NotSolvedWarning
        The solution x is not finite, or it is less accurate than the result of a plain LU factorization.

    Examples
    --------
    >>> import mxpeak as mx
    >>> x, info = mx.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0])
    >>> x, info.solved
    (array([1., 1.]), True)
    """
    form = "N" if transposed is False else form_of(transposed)
    if form != "H" and precision == device == "auto" and not local and _is_plain(A, b):
        return warned(*_directly(A if form == "N" else A.T, b))
    if isinstance(A, DistributedMatrix):
        return warned(*factored(A, precision, device, b).solve_quietly(b, transposed=form, local=local))
    if local:
        raise UsageError(
            "local=True applies only to a DistributedMatrix, whose rows are distributed over the ranks; "
            "remove local, or use mxpeak.DistributedMatrix.from_rows(A)"
        )
    if stack := stack_of(A):

        def solve_one(one: Input, side: Input) -> tuple[Any, SolveInfo]:
            return solve_by(choose.dense(None), one, side, precision)

        return warned(
            *_conjugated(
                form, stack, read(b, "b"), partial(solve_stack, device=device, precision=precision, solve_one=solve_one)
            )
        )
    of_A = matrix(A)
    of_b = right_hand_side(b, of_A.shape[0])
    kernels = kernels_for(device, of_A, of_b)
    return warned(*_conjugated(form, of_A, of_b, partial(solve_by, kernels, precision=precision)))


def _conjugated(
    form: str, A: Input, b: Input, solve_with: Callable[[Input, Input], tuple[Any, AnyInfo]]
) -> tuple[Any, AnyInfo]:
    """Solve A, A^T or A^H x = b; A^H x = b is A^T conj(x) = conj(b)."""
    conj = form == "H" and A.dtype.kind == "c"
    if form != "N":
        A = replace(A, array=A.array.swapaxes(-1, -2))
    if conj:
        b = replace(b, array=conjugate(b.array))
    x, info = solve_with(A, b)
    return conjugate(x) if conj else x, info


def lu_factor(A: Any, *, precision: str = "auto", device: str = "auto") -> LUFactors | DistributedFactors:
    """Factor A once, so that you can solve for many right-hand sides.

    Parameters
    ----------
    A : array_like, tensor or DistributedMatrix
        Square matrix to factor. Do not change A while you use the factors, because they refer to A.
    precision : {"auto", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8"}, default "auto"
        Precision of the factors.
    device : str, default "auto"
        Use "auto" to factor on the device of a tensor (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".

    Returns
    -------
    LUFactors or DistributedFactors
        LU factors with the method `solve(b, transposed=False)` and the attribute `condition`.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not square, not finite or not numeric.
    SingularMatrixError
        A pivot is exactly zero.
    ResourceError
        The device does not exist, or there is not enough memory.

    Examples
    --------
    >>> import mxpeak as mx
    >>> F = mx.lu_factor([[2.0, 0.0], [0.0, 4.0]])
    >>> x, info = F.solve([2.0, 4.0])
    >>> x
    array([1., 1.])
    """
    if isinstance(A, DistributedMatrix):
        return factored(A, precision, device)
    of_A = matrix(A)
    return lu_factor_by(kernels_for(device, of_A), of_A, precision)


def _is_plain(A: Any, b: Any) -> bool:
    """Return whether A and b are NumPy arrays of one type and a small order, which need no conversion and no copy."""
    if not (type(A) is np.ndarray is type(b) and A.ndim == 2 and 1 <= b.ndim <= 2 and A.dtype == b.dtype):
        return False
    n = len(A)
    if not 0 < n == A.shape[1] == len(b) or A.dtype not in LETTERS:
        return False
    return own_precision_is_fastest(n, b.size // n, A.dtype)


def kernels_for(device: str, *inputs: Input) -> DenseKernels:
    """The host's kernels, or those of the GPU that was named or where the inputs lie."""
    return choose.dense(device_for(device, *(one.device for one in inputs)))


def solve_by(kernels: DenseKernels, A: Input, b: Input, precision: str) -> tuple[Any, SolveInfo]:
    """`solve` by some kernels."""
    of_A, of_b = working_type(A.dtype), working_type(b.dtype)
    dtype = with_precision_of(of_A, np.result_type(of_A, of_b))
    alike = precision == "auto" and kernels.device is None and of_A.kind == of_b.kind
    n, sides = A.shape[0], columns(b)
    if not n:
        return EmptyFactors(A, precision, dtype, kernels).solve_empty(b)
    spans = Spans(stopwatch=kernels.stopwatch)
    if alike and own_precision_is_fastest(n, sides, dtype):
        x, info = _directly(A.on(None, dtype), b.on(None, dtype))
        return b.result(x), info
    B = block(b, dtype, kernels)
    if alike and own_precision_is_fastest(n, sides, dtype, "fp64"):
        found = _coarsely(kernels, A, "auto", dtype, B.shape[1], spans)
        if found is None:
            x, info = _directly(A.on(None, dtype), b.on(None, dtype), spans)
            return b.result(x), info
        return found.solve_block(B, b)
    return lu_factor_by(kernels, A, precision, dtype, B.shape[1], spans).solve_block(B, b)


def _directly(A: Matrix, b: Matrix, spent: Spans | None = None) -> tuple[Any, SolveInfo]:
    """Solve in the type of A and b: at once where a check finds nothing to mend, else with the factors as they are.

    spent   what it took to see that pivots fade; None where they do not, or were not looked at
    """
    if eliminated := suits_elimination(A, b):
        kernel_for(A.dtype)  # compiled, or read from disk, before the clock starts
    begin = time.perf_counter()
    found = solve_by_elimination(A, b) if eliminated else solve_directly(A, b)
    time_s = time.perf_counter() - begin
    if found is None or not found.enough:
        return _refined(found, A, b, time_s, spent)
    n, sides = len(A), b.size // len(A)
    why = FADED if spent else choose_precision(n, A.dtype, "auto", sides).reason
    times = {**(_times(spent) if spent else {}), "solve": time_s}
    return found.X, told(found, A, b, sides, times, why)


def _refined(found: Direct | None, A: Matrix, b: Matrix, time_s: float, spent: Spans | None) -> tuple[Any, SolveInfo]:
    """Solve with the factors that were found in so many seconds, or from the start where there are none."""
    kernels, n = choose.dense(None), len(A)
    of_A, of_b = (Input(name, x, x.dtype, x.shape, "cpu") for name, x in (("A", A), ("b", b)))
    B = block(of_b, A.dtype, kernels)
    spans = spent or Spans(stopwatch=kernels.stopwatch)
    spans.add("solve", time_s)
    if found is None:
        return lu_factor_by(kernels, of_A, "auto", A.dtype, B.shape[1], spans, faded=bool(spent)).solve_block(B, of_b)
    M = A if lies_well(A) else np.array(A)
    why = FADED if spent else choose_precision(n, A.dtype, "auto", B.shape[1]).reason
    return LUFactors(M, A.dtype, found.factors(kernels), spans, (), max_gmres_steps(n, "auto"), why=why).solve_block(
        B, of_b
    )


def _times(spans: Spans) -> dict[str, float]:
    return {name: phase.time_s for name, phase in spans.phases.items()}


def lu_factor_by(
    kernels: DenseKernels,
    A: Input,
    precision: str,
    dtype: np.dtype[Any] | None = None,
    sides: int = 1,
    spans: Spans | None = None,
    *,
    faded: bool = False,
) -> LUFactors:
    """`lu_factor` by some kernels, in a type; A is factored in fp64 where the precision fails altogether.

    faded   whether pivots are known to fade
    """
    n, dtype = A.shape[0], dtype or working_type(A.dtype)
    if not n:
        return EmptyFactors(A, precision, dtype, kernels)
    spans = spans or Spans(stopwatch=kernels.stopwatch)
    chosen, why = choose_precision(n, dtype, precision, sides, kernels.device)
    if not faded and chosen != "fp64":
        if found := _coarsely(kernels, A, precision, dtype, sides, spans):
            return found
        faded = True
    M, exponent = raised(kernels, on_kernels(A, dtype, "fp64", kernels), dtype)
    factors = factor_in_fp64(kernels, M, dtype, spans)
    why = FADED if faded else why
    return LUFactors(
        M, dtype, factors, spans, (), max_gmres_steps(n, precision), exponent, why, free=precision == "auto"
    )


def _coarsely(
    kernels: DenseKernels, A: Input, precision: str, dtype: np.dtype[Any], sides: int, spans: Spans
) -> LUFactors | None:
    """A factored in fp32 or 16 bits, refined later; None where fading pivots show that such factors are in vain."""
    n = A.shape[0]
    chosen, why = choose_precision(n, dtype, precision, sides, kernels.device)
    M, exponent = raised(kernels, on_kernels(A, dtype, chosen, kernels), dtype)
    coarser = roundoff(dtype) < PRECISIONS[chosen].u
    notes: tuple[str, ...] = ()
    look = precision == "auto" and kernels.device is None and coarser
    factors = factor(kernels, M, dtype, chosen, spans, unless_fading=look)
    if factors is None:
        return None
    if factors.precision != chosen:
        why = "its diagonal dominates"
    if factors.singular:
        notes = (note_of_breakdown(chosen, f"pivot {factors.singular} is zero"),)
        factors = factor_in_fp64(kernels, M, dtype, spans)
    elif coarser and factors.hide_singularity:  # before anything is refined in vain
        factors, notes = _deflated(kernels, M, dtype, factors, spans)
    return LUFactors(
        M, dtype, factors, spans, notes, max_gmres_steps(n, precision), exponent, why, free=precision == "auto"
    )


def _deflated(
    kernels: DenseKernels, A: Matrix, dtype: np.dtype[Any], factors: Factors, spans: Spans
) -> tuple[Factors, tuple[str, ...]]:
    """Factors that can tell A from a singular matrix, and a note where that takes fp64."""
    shown = factors.probed  # before `deflated` overwrites the last pivot
    if not shown * PRECISIONS["fp32"].u >= 1.0:
        shown = factors.condition  # which was estimated to come here
    with spans("deflate"):
        found = deflated(factors, A, roundoff(dtype))
    if found is not None:
        return found, ()
    return factor_in_fp64(kernels, A, dtype, spans), (note_of_doubt(shown),)


class LUFactors:
    """The LU factors of a matrix on a single process, returned by `lu_factor`.

    Do not change A while you use the factors, because mxpeak computes residuals with A.

    Attributes
    ----------
    A : ndarray or tensor
        Matrix from which mxpeak computed the factors. If the entries are tiny, mxpeak scales `A` and the factors up by
        a power of two.
    precision : str
        Precision of the factors.
    condition : float
        Estimated one-norm condition number of A, after any scaling.
    """

    def __init__(
        self,
        A: Matrix,
        dtype: np.dtype[Any],
        factors: Factors,
        spans: Spans,
        notes: tuple[str, ...],
        most: int,
        exponent: int = 0,
        why: str = "",
        *,
        free: bool = False,
    ):
        self.A = A
        self._exponent = exponent
        self._dtype = dtype
        self._most = most  # steps of GMRES
        self._why = why  # the precision of the factors
        self._free = free  # to take factors in fp64 where they are quicker
        self._factors = factors
        self._notes = notes
        self._spans = spans
        self._seen: float | None = None  # how large a condition GMRES sees with coarse factors
        self._transposed: LUFactors | None = None  # the same factors, as those of A^T

    @property
    def precision(self) -> str:
        """Return the precision of the factors."""
        return self._factors.precision

    @property
    def condition(self) -> float:
        """Return the estimated one-norm condition number of A, after any scaling.

        mxpeak computes the estimate when you first read this property.
        """
        return self._factors.condition

    def __repr__(self) -> str:
        n = self.A.shape[0]
        return f"LUFactors({n}x{n} {self._dtype}, precision={self.precision!r})"

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
            Solution in the precision of A. If b is a tensor, x is also a tensor.
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
        form = form_of(transposed)
        one = right_hand_side(b, self.A.shape[0])
        if self._factors.kernels.device is None:
            device_for("cpu", one.device)  # says what to type where b is on a GPU
            self._suit(columns(one))
        conj = form == "H" and self._dtype.kind == "c"  # A^H x = b is A^T conj(x) = conj(b)
        B = block(one, self._dtype, self._factors.kernels)
        B = self._factors.kernels.xp.conj(B) if conj else B
        factors = self if form == "N" else self._of_transpose()
        x, info = factors.solve_block(B, one)
        return warned(conjugate(x) if conj else x, info)

    def _suit(self, sides: int) -> None:
        """Factor in fp64 where so many right-hand sides would take longer to refine."""
        coarser = PRECISIONS[self.precision].u > roundoff(self._dtype)
        if self._free and coarser and fp64_refactoring_pays(self.A.shape[0], sides):
            self._factor_in_fp64(self._spans)
            self._why = "fastest for this number of right-hand sides"

    def _of_transpose(self) -> LUFactors:
        """The same factors, as those of A^T."""
        if self._transposed is None:
            spans = Spans(stopwatch=self._factors.kernels.stopwatch)
            factors = self._factors.of_transpose(self.A)
            if factors is None:
                self._fall_back(spans, note_of_doubt(self._factors.probed))
                factors = self._factors.of_transpose(self.A)
                assert factors is not None  # those in fp64 serve both
            self._transposed = LUFactors(
                self.A.T, self._dtype, factors, spans, self._notes, self._most, self._exponent, self._why
            )
        return self._transposed

    def solve_block(self, B: Block, b: Input) -> tuple[Any, SolveInfo]:
        """Solve for right-hand sides in the block format of the kernels, and return x in the format of b."""
        # The factorization's time belongs to the first solve.
        kernels, k = self._factors.kernels, columns(b)
        spans, self._spans = self._spans, Spans(stopwatch=kernels.stopwatch)
        if not k:
            return b.result(kernels.xp.reshape(B, b.shape)), self._info(NOTHING, spans, 0, (), Estimates.known((0.0,)))
        u = roundoff(self._dtype)
        given, (B, powers) = B, self._centred(B)
        done = refined(kernels, self.A, self._factors, B, u, spans, self._most)
        if beyond := done.outcome is Outcome.NOT_FINITE:
            B, powers = self._centred(given, lower=True)
            done = refined(kernels, self.A, self._factors, B, u, spans, self._most)
        if self.precision != "fp64" and (note := self._too_coarse(done, spans)):
            self._fall_back(spans, note)
            B, powers = self._centred(given, lower=beyond)
            done = refined(kernels, self.A, self._factors, B, u, spans, self._most)
        notes: tuple[str, ...] = ()
        X, exponents = done.X, self._exponent - powers
        if exponents.any():
            X = restored(kernels, X, exponents)
            done, notes = self._rounded(done, X, B, exponents)
            if loses(kernels, given, B, powers):  # an entry of b may be another one altogether
                done = replace(done, rows=max(done.rows or 0.0, 1.0 / (len(B) * u)))
        of_rows: Estimates | tuple[Any, ...] = self.A, kernels.xp.asarray(done.X, copy=True), B, done.eta, kernels
        if done.rows is not None:
            of_rows = Estimates.known((done.rows,))
        x = X if B.shape[1] == k else X[:, :k] + 1j * X[:, k:]
        return b.result(kernels.xp.reshape(x, b.shape)), self._info(done, spans, k, notes, of_rows)

    def _centred(self, B: Block, *, lower: bool = False) -> tuple[Block, Array]:
        scaling = self._factors.scaling
        rows = None if scaling is None else scaling.rows
        return centred(self._factors.kernels, B, self._dtype, rows, lower=lower)

    def _rounded(self, done: Refined, X: Block, B: Block, exponents: Array) -> tuple[Refined, tuple[str, ...]]:
        """Describe X, 2^exponents times the solution: where that rounds, errors are those of the rounded one."""
        kernels, dtype, u = self._factors.kernels, self._dtype, roundoff(self._dtype)
        if done.outcome is Outcome.SOLVED and not all(map(isfinite, largest(kernels, X))):
            return replace(done, eta=inf, rows=inf, outcome=Outcome.NOT_FINITE), (f"x is beyond the range of {dtype}",)
        if done.outcome is not Outcome.SOLVED:
            return done, ()
        xp, Y = kernels.xp, restored(kernels, X, -exponents)  # Y includes the rounding error of X
        if not bool(xp.any(Y != done.X)):
            return done, ()
        with kernels.computing():
            R = kernels.residual(B, self.A, Y)
            A_inf = self._factors.A_inf if self._factors.scaling is None else self._factors.scaling.A_inf
            eta = float(np.max(backward_errors(kernels, R, Y, np.array(largest(kernels, B)), A_inf, u)))
            rows = float(np.max(row_errors(xp, R, sizes_of_terms(kernels, self.A, Y, B), len(R), u)))
            change, whole = (np.array(largest(kernels, V)) for V in (Y - done.X, done.X))
        lost = bool((change > LOST * whole).any())
        return replace(done, X=Y, eta=eta, rows=rows, underflows=lost), (note_of_underflow(dtype),) * lost

    def _too_coarse(self, done: Refined, spans: Spans) -> str:
        """Why the factors do not do; empty: they do."""
        factors, u = self._factors, roundoff(self._dtype)
        if done.outcome is not Outcome.SOLVED:
            told = f"condition {factors.condition:.1e}, growth {factors.growth:.1e}"
            return note_of_coarseness(self.precision, done.steps, done.eta, told)
        if not done.even_rows:
            return note_of_uneven_rows(self.precision, done.steps, inf if done.rows is None else done.rows)
        if coarse(self.precision) and self._seen is None:
            with spans("refine"):
                self._seen = condition_seen(factors.kernels, self.A, factors, u, self._most)
        if self._seen is None or self._seen <= most_condition(self.precision):
            return ""
        return note_of_doubt(self._seen, self.precision)

    def _fall_back(self, spans: Spans, note: str) -> None:
        """Factor A in fp64, and say why."""
        self._factor_in_fp64(spans)
        self._notes += (note,)

    def _factor_in_fp64(self, spans: Spans) -> None:
        self._factors, self._transposed = factor_in_fp64(self._factors.kernels, self.A, self._dtype, spans), None

    def _info(
        self, done: Refined, spans: Spans, rhs: int, beyond: tuple[str, ...], of_rows: Estimates | tuple[Any, ...]
    ) -> SolveInfo:
        factors, dtype = self._factors, self._dtype
        notes = self._notes + beyond
        singular = done.doubtful and factors.singular_to(roundoff(dtype))
        if singular:
            notes += (note_of_singularity(factors.condition, dtype, done.outcome),)
        lost = not singular and not done.moved <= LOST
        if lost:
            notes += (note_of_columns(done.moved),)
        return SolveInfo(
            outcome=done.outcome,
            n=self.A.shape[0],
            rhs=rhs,
            precision=factors.precision,
            emulated=factors.emulated,
            iterations=done.steps,
            backward_error=done.eta,
            scaled=factors.scaling is not None,
            fallback=bool(self._notes),
            ill_conditioned=singular or lost or done.underflows,
            u=roundoff(dtype),
            message="\n".join(notes),
            why="coarser ones failed" if self._notes else self._why,
            times=_times(spans),
            history=tuple(done.history),
            _estimates=Estimates(lambda: (factors.condition, factors.growth)),
            _row_error=of_rows,
        )


class EmptyFactors(LUFactors):
    """The factors of a matrix of order 0, for which every x is empty."""

    def __init__(self, A: Input, precision: str, dtype: np.dtype[Any], kernels: DenseKernels):
        self.A, self._dtype, self._kernels = A.array, dtype, kernels
        self._precision = choose_precision(0, dtype, precision, 1, kernels.device).name

    @property
    def precision(self) -> str:
        """Return the precision that factors of this type would have."""
        return self._precision

    @property
    def condition(self) -> float:
        """Return 0, the condition number of an empty matrix."""
        return 0.0

    def solve(self, b: Any, *, transposed: bool | str = False) -> tuple[Any, SolveInfo]:
        """Return an empty x of the shape of b."""
        form_of(transposed)
        return self.solve_empty(right_hand_side(b, 0))

    def solve_empty(self, b: Input) -> tuple[Any, SolveInfo]:
        """Return an empty x for a right-hand side that has already been read."""
        of_b = working_type(b.dtype)
        x = np.empty(
            b.shape, typed(is_complex="c" in (self._dtype.kind, of_b.kind), wide=roundoff(self._dtype) < 2.0**-24)
        )
        info = SolveInfo(
            n=0,
            rhs=columns(b),
            precision=self._precision,
            iterations=0,
            backward_error=0.0,
            u=roundoff(self._dtype),
            times={},
            history=(),
            _estimates=Estimates.known((0.0, 1.0)),
            _row_error=Estimates.known((0.0,)),
        )
        return b.result(x), info
