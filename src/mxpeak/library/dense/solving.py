"""solve and lu_factor: which precision, what to do where it fails, and what to tell."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from mxpeak.errors import Outcome, UsageError
from mxpeak.kernels import choose
from mxpeak.kernels.contract import DenseKernels, Matrix
from mxpeak.kernels.contract.dense import Block
from mxpeak.library.dense.choices import chosen_precision, plain, reason, suits_directly
from mxpeak.library.dense.deflation import deflated
from mxpeak.library.dense.direct import Direct, solve_directly, told
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_info import DistributedInfo
from mxpeak.library.dense.distributed_solving import DistributedFactors, factored
from mxpeak.library.dense.eliminated import kernel_for, solve_by_elimination, suits_elimination
from mxpeak.library.dense.extremes import centred, raised, restored
from mxpeak.library.dense.factoring import Estimates, Factors, coarse, factor, factor_in_fp64, most_condition
from mxpeak.library.dense.info import (
    LOST,
    SolveInfo,
    note_of_breakdown,
    note_of_coarseness,
    note_of_columns,
    note_of_doubt,
    note_of_singularity,
)
from mxpeak.library.dense.inputs import block, columns, lies_well, matrix, on_kernels, right_hand_side
from mxpeak.library.dense.refinement import ORDERS_PER_LU, ORDERS_PER_STEP, Refined, condition_seen, largest, refined
from mxpeak.library.dense.stack import StackInfo, solve_stack, stack_of
from mxpeak.library.dense.types import roundoff, with_precision_of, working_type
from mxpeak.library.inputs import Input, device_for
from mxpeak.library.outcomes import warned
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.refine import MOST_STEPS
from mxpeak.spans import Spans

#: Why factors are fp64's where those of fp32 would be in vain.
FADED = "pivots fade"


def solve(
    A: Any, b: Any, *, transposed: bool = False, precision: str = "auto", device: str = "auto", local: bool = False
) -> tuple[Any, SolveInfo | StackInfo | DistributedInfo]:
    """Solve A x = b, or A^T x = b if `transposed`, to the accuracy of the input's type; neither A nor b is changed.

    A: n×n, in any memory order; b: (n,) or (n, k); arrays, or tensors of torch.  A stack of systems, A (..., n, n) and
    b (n,) or (..., n, k), is solved as NumPy does, system by system, on the host.  Integers become fp64, 16-bit numbers
    fp32; the result has the type that A and b promote to, and is an array or a tensor as b is, where b is.
    `precision` is that of the factors: auto, fp64, fp32, tf32, bf16, fp16 or fp8.  `device`: auto (that of the tensors,
    else the host), cpu, cuda or cuda:0 …
    Where factors in a low precision do not lead to the accuracy of plain LU in the input's type, A is factored again in
    fp64, and `info` says so; it also holds outcome, backward error, condition, steps and times: print(info).

    Warns with IllConditionedWarning where A is singular to working precision: x may then have no correct digit.
    Raises UsageError, a ValueError, for what is not square, finite or numeric, SingularMatrixError, a LinAlgError, for
    a pivot that is exactly zero, and ResourceError where the device does not exist or its memory is too small.
    docs/solving.md explains the rest.

    A may be a `DistributedMatrix`: then all its ranks call, b is the same on all or a function of row indices, and all
    get x; with `local=True` b and x are each rank's own rows: docs/distributed.md.

    >>> import mxpeak as mx
    >>> x, info = mx.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0])
    >>> x, info.solved
    (array([1., 1.]), True)
    """
    if precision == device == "auto" and not local and plain(A, b):
        return warned(*_directly(A.T if transposed else A, b))
    if isinstance(A, DistributedMatrix):
        return warned(*factored(A, precision, device, b).solve_quietly(b, transposed=transposed, local=local))
    if local:
        raise UsageError(
            "local=True is for rows of a DistributedMatrix, which ranks share; leave it out, or give each rank's rows: "
            "mxpeak.DistributedMatrix.from_rows(A)"
        )
    if stack := stack_of(A):
        if transposed:
            stack = replace(stack, array=stack.array.swapaxes(-1, -2))

        def solve_one(one: Input, side: Input) -> tuple[Any, SolveInfo]:
            return solve_by(choose.dense(None), one, side, precision)

        return warned(*solve_stack(stack, b, device, precision, solve_one))
    of_A = matrix(A)
    if transposed:
        of_A = replace(of_A, array=of_A.array.T)
    of_b = right_hand_side(b, of_A.shape[0])
    return warned(*solve_by(kernels_for(device, of_A, of_b), of_A, of_b, precision))


def lu_factor(A: Any, *, precision: str = "auto", device: str = "auto") -> LUFactors | DistributedFactors:
    """Factor A once, to solve for many b: `lu_factor(A).solve(b)`.  A is kept, not copied: leave it unchanged."""
    if isinstance(A, DistributedMatrix):
        return factored(A, precision, device)
    of_A = matrix(A)
    return lu_factor_by(kernels_for(device, of_A), of_A, precision)


def kernels_for(device: str, *inputs: Input) -> DenseKernels:
    """The host's kernels, or those of the GPU that was named or where the inputs lie."""
    return choose.dense(device_for(device, *(one.device for one in inputs)))


def solve_by(kernels: DenseKernels, A: Input, b: Input, precision: str) -> tuple[Any, SolveInfo]:
    """`solve` by some kernels."""
    of_A, of_b = working_type(A.dtype), working_type(b.dtype)
    dtype = with_precision_of(of_A, np.result_type(of_A, of_b))
    alike = precision == "auto" and kernels.device is None and of_A.kind == of_b.kind
    n, sides = A.shape[0], columns(b)
    spans = Spans(stopwatch=kernels.stopwatch)
    if alike and suits_directly(n, sides, dtype):
        x, info = _directly(A.on(None, dtype), b.on(None, dtype))
        return b.result(x), info
    B = block(b, dtype, kernels)
    if alike and suits_directly(n, sides, dtype, "fp64"):
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
    why = FADED if spent else reason(n, A.dtype, "auto", sides)
    return found.X, told(found, sides, {**(_times(spent) if spent else {}), "solve": time_s}, why)


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
    why = FADED if spent else reason(n, A.dtype, "auto", B.shape[1])
    return LUFactors(M, A.dtype, found.factors(kernels), spans, (), _most(n, "auto"), why=why).solve_block(B, of_b)


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
    spans = spans or Spans(stopwatch=kernels.stopwatch)
    why = reason(n, dtype, precision, sides, kernels.device)
    if not faded and chosen_precision(n, dtype, precision, sides, kernels.device) != "fp64":
        if found := _coarsely(kernels, A, precision, dtype, sides, spans):
            return found
        faded = True
    M, exponent = raised(kernels, on_kernels(A, dtype, "fp64", kernels), dtype)
    factors = factor_in_fp64(kernels, M, dtype, spans)
    why = FADED if faded else why
    return LUFactors(M, dtype, factors, spans, (), _most(n, precision), exponent, why, free=precision == "auto")


def _coarsely(
    kernels: DenseKernels, A: Input, precision: str, dtype: np.dtype[Any], sides: int, spans: Spans
) -> LUFactors | None:
    """A factored in fp32 or 16 bits, refined later; None where fading pivots show that such factors are in vain."""
    n = A.shape[0]
    chosen = chosen_precision(n, dtype, precision, sides, kernels.device)
    why = reason(n, dtype, precision, sides, kernels.device)
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
    return LUFactors(M, dtype, factors, spans, notes, _most(n, precision), exponent, why, free=precision == "auto")


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


def _most(n: int, precision: str) -> int:
    """Steps of GMRES: where fp64 may be had for the asking, they must not cost more than its LU would."""
    return MOST_STEPS if precision != "auto" else min(MOST_STEPS, n // ORDERS_PER_STEP)


class LUFactors:
    """A and its factors.  A is needed for residuals and must not be changed while these are used.

    Where A is tiny, `A` is 2^exponent times as large, and so are the factors.
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
        """The precision of the factors."""
        return self._factors.precision

    @property
    def condition(self) -> float:
        """Estimate of the one-norm condition number of A, as scaled; computed when first asked for."""
        return self._factors.condition

    def __repr__(self) -> str:
        n = self.A.shape[0]
        return f"LUFactors({n}x{n} {self._dtype}, precision={self.precision!r})"

    def solve(self, b: Any, *, transposed: bool = False) -> tuple[Any, SolveInfo]:
        """Solve A x = b, or A^T x = b, b (n,) or (n, k), in A's precision; x is an array or a tensor as b is.

        Where the factors turn out to be too coarse, A is factored in fp64, and those factors are kept; on the host also
        where the precision was left open and b has so many columns that refining them would take longer.
        """
        one = right_hand_side(b, self.A.shape[0])
        if self._factors.kernels.device is None:
            device_for("cpu", one.device)  # says what to type where b is on a GPU
            self._suit(columns(one))
        B = block(one, self._dtype, self._factors.kernels)
        return warned(*(self._of_transpose() if transposed else self).solve_block(B, one))

    def _suit(self, sides: int) -> None:
        """Factor in fp64 where so many right-hand sides would take longer to refine."""
        coarser = PRECISIONS[self.precision].u > roundoff(self._dtype)
        if self._free and coarser and sides * ORDERS_PER_LU > self.A.shape[0]:
            self._factor_in_fp64(self._spans)
            self._why = "quickest for so many right-hand sides"

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
        """The same for b as a block; x is returned as b was passed."""
        # The factorization's time belongs to the first solve.
        kernels = self._factors.kernels
        spans, self._spans = self._spans, Spans(stopwatch=kernels.stopwatch)
        u = roundoff(self._dtype)
        B, power = centred(kernels, B, self._dtype, self._exponent)
        done = refined(kernels, self.A, self._factors, B, u, spans, self._most)
        if self.precision != "fp64" and (note := self._too_coarse(done, spans)):
            self._fall_back(spans, note)
            done = refined(kernels, self.A, self._factors, B, u, spans, self._most)
        k = columns(b)
        X = restored(kernels, done.X, self._exponent - power)
        beyond: tuple[str, ...] = ()
        if done.outcome is Outcome.SOLVED and not np.isfinite(largest(kernels, X)).all():
            done, beyond = replace(done, outcome=Outcome.NOT_FINITE), (f"x is beyond the range of {self._dtype}",)
        x = X if B.shape[1] == k else X[:, :k] + 1j * X[:, k:]
        return b.result(kernels.xp.reshape(x, b.shape)), self._info(done, spans, k, beyond)

    def _too_coarse(self, done: Refined, spans: Spans) -> str:
        """Why the factors do not do; empty: they do."""
        factors, u = self._factors, roundoff(self._dtype)
        if done.outcome is not Outcome.SOLVED:
            told = f"by these factors the condition is {factors.condition:.1e}, the growth {factors.growth:.1e}"
            return note_of_coarseness(self.precision, done.steps, done.eta, told)
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

    def _info(self, done: Refined, spans: Spans, rhs: int, beyond: tuple[str, ...]) -> SolveInfo:
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
            ill_conditioned=singular or lost,
            u=roundoff(dtype),
            message="\n".join(notes),
            why="coarser ones failed" if self._notes else self._why,
            times=_times(spans),
            history=tuple(done.history),
            _estimates=Estimates(lambda: (factors.condition, factors.growth)),
        )
