"""Factor and solve distributed matrices for `solve` and `lu_factor`.

The factors are in fp32 if that is faster. If you request a lower precision, the operands of matrix products are
rounded to that precision. If the factors break down, or refinement does not reach the accuracy of fp64, A is factored
again in fp64, and `info` contains the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, raise_first_error, validate_on_all
from mxpeak.configs.run import PlaceConfig
from mxpeak.distributed.dense import DistMatrix, dist_matrix
from mxpeak.distributed.sources import UserMatrix
from mxpeak.distributed.symmetric import SymmetricMatrix
from mxpeak.errors import MxpeakError, Outcome, UsageError
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.engine import blas
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.factors import DenseFactors, raise_singular
from mxpeak.library.dense.info import Estimates, SolveInfo, note_of_breakdown, note_of_doubt
from mxpeak.library.dense.inputs import form_of
from mxpeak.library.dense.matrix_source import Source, owned
from mxpeak.library.dense.memory import check_memory, check_rhs_memory
from mxpeak.library.dense.real_form import moduli, real_columns, real_form, real_rhs, solutions
from mxpeak.library.dense.right_hand_sides import right_hand_sides
from mxpeak.library.inputs import read
from mxpeak.library.outcomes import warned
from mxpeak.library.policy import check_precision, choose_precision, max_gmres_steps
from mxpeak.library.types import Array
from mxpeak.precision import PRECISIONS, stored_as
from mxpeak.runtime.placement import bind_to_cores, load_kernels
from mxpeak.solvers.accuracy import PLAIN_LU, Accuracy, plain_lu_by_rows, worst
from mxpeak.solvers.grid_factors import GridFactors, GridLU, GridMatrix
from mxpeak.solvers.refine import Solution, solve_equations, solve_in_range
from mxpeak.spans import Spans

#: Target of the refinement of low-precision factors, in units of the error of plain LU. Reaching this target takes one
#: step more than the target PLAIN_LU.
REFINED = 2.0**-10
#: Phases in `info.times`.
PHASES = ("make", "equilibrate", "factor", "refine")

AnyFactors = TypeVar("AnyFactors", bound="DistributedFactors")


def factored(A: DistributedMatrix, precision: str = "auto", device: str = "auto", b: Any = None) -> DistributedFactors:
    """Factor a distributed matrix by LU in the requested precision, or in the fastest one for `b` if it is "auto".

    If the LU breaks down, factor A again in fp64. Collective.
    """
    return factored_as(DistributedFactors, A, A.source, precision, device, b)


def factored_as(
    kind: type[AnyFactors],
    A: DistributedMatrix,
    source: Source,
    precision: str,
    device: str,
    b: Any,
    spans: Spans | None = None,
) -> AnyFactors:
    """Factor a matrix, whose entries are those of `source`, in the same way as `factored` by the method of `kind`.

    `spans` contains the time of an earlier attempt.
    """
    chosen, spans = chosen_precision(A, precision, device, b, kind._engine), spans or Spans()
    held, in_use = source.holds, source.held
    size_bytes = check_memory(A.comm, A.n, A.nb, (A.grid.P, A.grid.Q), held=held, in_use=in_use, parts=A.parts)
    notes: tuple[str, ...] = ()
    factors = kind._factors_in(chosen, A, source, spans)
    if chosen != "fp64" and not factors.usable:
        reason = f"||A||_inf is {factors.norms[0]:.1e}"
        if factors.singular and isfinite(factors.norms[0]):
            reason = kind._why_singular(factors, A)
        notes = (note_of_breakdown(chosen, reason, factors.name),)
        del factors  # free this memory before the next factorization
        factors = kind._factors_in("fp64", A, source, spans)
    steps = max(1, max_gmres_steps(A.parts * A.n, precision))
    return kind(A, source, factors, spans, size_bytes, notes, steps)


def check_norms(factors: GridFactors) -> None:
    """Raise a UsageError if the norms of A overflow."""
    if not all(map(isfinite, factors.norms)):
        raise UsageError(
            "row or column sums of A exceed 1.8e308, the largest fp64 number, so mxpeak cannot compute the "
            "error; divide A and b by a power of two, such as 2.0**64"
        )


def _factor_once(precision: str, A: DistributedMatrix, source: Source, spans: Spans, *, scale: bool) -> GridLU:
    """Generate A in the storage type of `precision`, and factor A. If `scale`, scale A if necessary. Collective."""
    with computing(A.comm) as kernels:
        matrix = grid_matrix(A, source, partial(UserMatrix, kernels=kernels))
        LU = stored(matrix, A.comm, source, precision, spans)
        return GridLU(matrix, LU, precision, kernels, spans, scale=scale)


def grid_matrix(
    A: DistributedMatrix,
    source: Source,
    distribute: Callable[..., UserMatrix | SymmetricMatrix],
    *,
    symmetric: bool = False,
) -> GridMatrix:
    """Return the real form and the absolute values of a matrix, whose entries are those of `source`, on the grid of A.

    `distribute` creates a distributed matrix from a grid, the order, the block size and a `Strips` function.
    `symmetric` selects the real form that is symmetric if A is complex symmetric.
    """
    strips = real_form(source, symmetric=symmetric) if A.parts == 2 else source
    real = distribute(A.grid, A.parts * A.n, A.parts * A.nb, strips)
    sizes = distribute(A.grid, A.n, A.nb, lambda *part: np.abs(source(*part)))
    return GridMatrix(real, sizes, lambda V: moduli(V, A.dtype))


def stored(matrix: GridMatrix, comm: Communicator, source: Source, precision: str, spans: Spans) -> DistMatrix:
    """Return a copy of a matrix in the storage type of `precision`; raise the errors of its source. Collective."""
    real = matrix.A
    with computing(comm) as kernels:
        copy = dist_matrix(real.grid, real.n, real.n, real.nb, kernels, stored_as(precision))
    # Numbers beyond the range of fp32 become inf, which the norms show.
    with spans("make"), np.errstate(over="ignore"):
        real.store(copy)
    raise_first_error(comm, source.mistake())
    return copy


class DistributedFactors(DenseFactors):
    """The LU factors of a distributed matrix, returned by `lu_factor`.

    All ranks must call the methods, and read `condition`, at the same point in the program.

    Attributes
    ----------
    A : DistributedMatrix
        Distributed matrix from which mxpeak computed the factors.
    precision : str
        Precision of the factors. The value changes to "fp64" if `solve` factors A again.
    condition : float
        Estimated one-norm condition number of A, without any scaling.
    """

    _engine: ClassVar = "ranks"
    _why = ""

    def __init__(
        self,
        A: DistributedMatrix,
        source: Source,
        factors: GridFactors,
        spans: Spans,
        size_bytes: int,
        notes: tuple[str, ...],
        gmres_steps: int,
    ):
        self.A, self._source = A, source
        self.precision = factors.precision
        self._gmres_steps, self._error = gmres_steps, None
        self._factors, self._spans, self._bytes, self._notes = factors, spans, size_bytes, notes

    _error: MxpeakError | None  # the error that left this object without factors

    @staticmethod
    def _factors_in(precision: str, A: DistributedMatrix, source: Source, spans: Spans) -> GridFactors:
        """Factor A with partial pivoting in a precision; raise an error if fp64 factors are singular. Collective.

        If the fp64 factors of the scaled matrix are singular, factor A again without scaling, because scaling can make
        pivots underflow.
        """
        factors = _factor_once(precision, A, source, spans, scale=True)
        if precision != "fp64":
            return factors
        if factors.singular and factors.scaled:
            plain = _factor_once(precision, A, source, spans, scale=False)
            factors = plain if not plain.singular else factors
        if factors.singular:
            with computing(A.comm):
                least = factors.least_size()
            raise_singular(first_breakdown(factors, A), A.n, least, on_grid=True)
        check_norms(factors)
        return factors

    @staticmethod
    def _why_singular(factors: GridFactors, A: DistributedMatrix) -> str:
        """Return the reason for a breakdown of the factorization."""
        return f"pivot {first_breakdown(factors, A)} is zero"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.A!r}, precision={self.precision!r})"

    @property
    def condition(self) -> float:
        """Return the estimated one-norm condition number of A, without any scaling.

        The first access takes as long as four to six solves. All ranks must read this property at the same point in the
        program. If the condition number exceeds 1/u = 1.7e7, fp32 factors cannot distinguish it from infinity.
        """
        self._check_factors()
        with computing(self.A.comm):
            return self._factors.unscaled_condition()  # type: ignore[no-any-return]

    def solve(self, b: Any, *, transposed: bool | str = False, local: bool = False) -> tuple[Array, SolveInfo]:
        """Solve A x = b with these factors.

        If the factors are not accurate enough, `solve` factors A again in fp64 and keeps the new factors. All ranks
        must call this method.

        Parameters
        ----------
        b : array_like or callable
            Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k). Unless `local` is True,
            all ranks must pass the same values. You can also pass a function that returns the values for an array of
            row indices.
        transposed : bool or {"N", "T", "H"}, default False
            Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.
        local : bool, default False
            If True, b and x contain only the rows `A.own_rows` of this rank.

        Returns
        -------
        x : ndarray
            Solution in float64 or complex128, the same on all ranks. If `local` is True, x contains only the rows of
            this rank.
        info : SolveInfo
            Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times.

        Raises
        ------
        UsageError
            An argument is invalid, or it is not the same on all ranks.
        SingularMatrixError
            A pivot of the fp64 factors is exactly zero.
        NotPositiveDefiniteError
            The Cholesky factorization in fp64 shows that A is not positive definite.
        ResourceError
            There is not enough memory.

        Warns
        -----
        IllConditionedWarning
            The solution x may have no correct digits, for example because A is singular to working precision.
        NotSolvedWarning
            The solution x is not finite, or it is less accurate than the result of a plain LU factorization.

        Examples
        --------
        >>> import mxpeak as mx
        >>> A = mx.DistributedMatrix.from_function(lambda i, j: 2.0 * (i == j), 4)
        >>> x, info = mx.lu_factor(A).solve(lambda i: 2.0 * i)
        >>> x
        array([0., 1., 2., 3.])
        """
        return warned(*self.solve_quietly(b, transposed=transposed, local=local))

    def solve_quietly(self, b: Any, *, transposed: bool | str = False, local: bool = False) -> tuple[Array, SolveInfo]:
        """Solve A x = b in the same way as `solve`, but without warnings.

        Parameters
        ----------
        b : array_like or callable
            Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k). Unless `local` is True,
            all ranks must pass the same values. You can also pass a function that returns the values for an array of
            row indices.
        transposed : bool or {"N", "T", "H"}, default False
            Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.
        local : bool, default False
            If True, b and x contain only the rows `A.own_rows` of this rank.

        Returns
        -------
        x : ndarray
            Solution in float64 or complex128, the same on all ranks. If `local` is True, x contains only the rows of
            this rank.
        info : SolveInfo
            Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times.

        Raises
        ------
        UsageError
            An argument is invalid, or it is not the same on all ranks.
        SingularMatrixError
            A pivot of the fp64 factors is exactly zero.
        NotPositiveDefiniteError
            The Cholesky factorization in fp64 shows that A is not positive definite.
        ResourceError
            There is not enough memory.
        """
        self._check_factors()
        A, comm = self.A, self.A.comm
        form = validate_on_all(
            comm, lambda: form_of(transposed), lambda form: f'transposed="{form}", local={bool(local)}'
        )
        B = right_hand_sides(A, b, local=local)
        rows = slice(A.own_rows.start, A.own_rows.stop) if local else slice(None)
        if not B.size:
            return B[rows], self._info(Solution(B, B, None, Outcome.SOLVED, 0.0, 0, [], rows=0.0), 0, Spans())
        check_rhs_memory(comm, A.n, B.size // A.n, 2 if "c" in A.dtype.kind + B.dtype.kind else 1, A.parts)
        spans, self._spans = self._spans, Spans()  # the time of the factorization belongs to the first solve
        with computing(comm):
            solution = self._refined(
                lambda lower: self._solve(np.reshape(B, (A.n, -1)), form, spans, lower=lower), spans, parts=A.parts
            )
        X = self._solutions(solution.X, B.dtype, form)
        return X.reshape(B.shape)[rows], self._info(solution, X.shape[1], spans)

    def _real_rhs(self, B: Array, form: str) -> Array:
        """Return B (n, k) as right-hand sides of the real system."""
        return real_rhs(B, self.A.dtype, conjugated=form == "T")

    def _solutions(self, X: Array, of_b: np.dtype[Any], form: str) -> Array:
        """Convert the solutions X of the real system to those of the user's system."""
        return solutions(X, self.A.dtype, of_b, conjugated=form == "T")

    def _solve(self, user_B: Array, form: str, spans: Spans, *, lower: bool) -> tuple[Solution, bool]:
        """Solve the real system of A or A^T with the current factors by `solve_in_range`. Collective."""
        A, factors, B, transposed = self.A, self._factors, self._real_rhs(user_B, form), form != "N"
        equations, real = factors.equations(scaled=False, transposed=transposed), factors.matrix.A
        rows = owned(real.cols if transposed else real.rows)
        enough = max(4.0 / real.n, PLAIN_LU if self.precision == "fp64" else REFINED)
        accuracy = Accuracy(enough, enough, plain_lu_by_rows(A.n, is_complex=A.parts == 2))

        def solve(centered_B: Array) -> Solution:
            local_B = np.ascontiguousarray(centered_B[rows])
            solution = solve_equations(
                factors, local_B, accuracy, self._gmres_steps, equations=equations, first=equations
            )
            if solution.rows is None:
                solution.rows = worst(equations.row_errors(solution.Y, solution.R, local_B))
            return solution

        with spans("refine"), np.errstate(all="ignore"):
            R = factors.scales(transposed=transposed)
            solution, lower = solve_in_range(equations, B, R, lambda V, _: solve(V), lower=lower)
            solution.X = factors.gathered(solution.X, over_rows=transposed)
        raise_first_error(A.comm, self._source.mistake())
        return solution, lower

    def _note_of_hidden_singularity(self, solution: Solution) -> str:
        """Return a note if the condition number exceeds the limit of fp32 factors, otherwise an empty string.

        Only fp64 factors can then show whether A is singular.
        """
        if solution.doubtful and self._factors.condition * PRECISIONS["fp32"].u >= 1.0:
            return note_of_doubt(self._factors.condition, self.precision, self._factors.name)
        return ""

    def _factor_in_fp64(self, spans: Spans) -> None:
        """Replace the factors with fp64 factors; if this fails, every later call raises the same error."""
        del self._factors  # free this memory before the next factorization
        try:
            self._factors = self._factors_again(spans)
        except MxpeakError as error:
            self._error = error
            raise
        self.precision = "fp64"

    def _factors_again(self, spans: Spans) -> GridFactors:
        """Return factors of A in fp64, after the first ones were not accurate enough. Collective."""
        return self._factors_in("fp64", self.A, self._source, spans)

    def _check_factors(self) -> None:
        """Raise the error of an earlier refactorization if that refactorization failed."""
        if self._error is not None:
            raise self._error

    def _info(self, solution: Solution, rhs: int, spans: Spans) -> SolveInfo:
        """Return the diagnostics of a solve for `rhs` right-hand sides. Collective."""
        A, factors = self.A, self._factors
        with computing(A.comm) as kernels:
            condition = factors.unscaled_condition() if solution.doubtful else None
            return self._info_of(
                solution,
                np.dtype(np.float64),
                n=A.n,
                rhs=rhs,
                backward_error=A.parts * solution.eta if isfinite(solution.eta) else inf,  # in units of n·u
                emulated=kernels.emulates(self.precision),
                grid=(A.grid.P, A.grid.Q),
                nb=A.nb,
                bytes_a_rank=self._bytes,
                times={name: time_s for name, time_s in spans.times.items() if name in PHASES},
                history=tuple(A.parts * eta for eta in solution.history),
                _estimates=Estimates.from_values((condition, factors.growth)),
                _row_error=Estimates.from_values((solution.rows,)),
            )


def chosen_precision(A: DistributedMatrix, precision: str, device: str, b: Any, engine: str) -> str:
    """Return the precision of the factors. "auto" selects fp32 if it saves more time than refinement costs.

    Collective, because b may be real on one rank and complex on another.
    """
    local = validate_on_all(A.comm, lambda: _rhs_count(A, precision, device, b), lambda _: f"precision={precision!r}")
    if precision != "auto":
        return precision
    n, rhs = A.parts * A.n, int(allreduce_scalar(A.comm, float(local), "max"))
    return choose_precision(n, np.dtype(np.float64), "auto", rhs, engine=engine).name


def _rhs_count(A: DistributedMatrix, precision: str, device: str, b: Any) -> int:
    """Return the number of right-hand sides of the real system, or 1 if b is not an array.

    Raises a UsageError for an unknown precision or device.
    """
    check_precision(precision)
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"device = {device!r} is not supported, because mxpeak solves distributed systems on the CPU; use "
            'device="cpu"'
        )
    try:
        values = read(b, "b")
    except UsageError:  # None, a function, or values that are rejected later
        return 1
    return real_columns(values.shape[1] if len(values.shape) == 2 else 1, A.dtype, values.dtype)


def first_breakdown(factors: GridFactors, A: DistributedMatrix) -> int:
    """Return the column of A, counted from 1, in which the factorization broke down."""
    return -(-factors.singular // A.parts)


_kernels: WeakKeyDictionary[Any, Kernels] = WeakKeyDictionary()


@contextmanager
def computing(comm: Communicator) -> Iterator[Kernels]:
    """Yield the host's kernels for these ranks with BLAS limited to one thread. Collective.

    The kernels are created once per communicator.
    """
    with blas.one_thread():
        if comm not in _kernels:
            placement = bind_to_cores(comm, None)
            placement.release()
            config = PlaceConfig(device="cpu", kernels="host")
            _kernels[comm] = load_kernels(config, replace(placement, cores=[]), comm)[0]
        yield _kernels[comm]
