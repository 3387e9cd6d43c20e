"""Dense systems A x = b of one's own: LU in a low precision, refined to the accuracy of the input's type.

    x, info = mxpeak.solve(A, b)
    F = mxpeak.lu_factor(A); x, info = F.solve(b)

P A = L U is computed where arithmetic is fast (Carson, Higham 2018).  Its errors are then removed by classical
refinement, x = x + U^-1 L^-1 (b - A x), as long as that gains digits, else by GMRES preconditioned with the factors;
what neither can solve is factored again in fp64.  Rows and columns are scaled by powers of two where the range or the
spread of A asks for it (Higham, Pranesh, Zounon 2019), and all below runs on the scaled system

    A_s y = b_s,   A_s = D_r A D_c,   b_s = D_r b,   x = D_c y.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from mxpeak.errors import Outcome, ResourceError, SingularError, UsageError
from mxpeak.kernels.host import blas, lapack
from mxpeak.precision import PRECISIONS
from mxpeak.solvers import refine
from mxpeak.solvers.krylov import Basis, Space
from mxpeak.spans import Spans

Array = np.ndarray[Any, np.dtype[Any]]

#: Below this order an fp64 LU is so quick that refining a fp32 one would not pay.
FP32_FROM = 250
#: fp32 pays while there are n / this many right-hand sides: refining each costs some 9·n² flops, mostly slow ones, and
#: the LU saves the time of n³/3.
ORDERS_PER_SIDE = 64
#: Entries that are worked on at a time: their copies stay in the second-level cache.
CACHED = 1 << 17
#: Bytes from which the factors lie in pages of their own, first written by several threads.
LARGE = 1 << 25
#: A step of GMRES takes about the time of an fp64 LU by n / this.
ORDERS_PER_STEP = 64
#: A is scaled if the sums of its rows, or of its columns, spread by more, or lie farther from 1, than this.
SPREAD, RANGE = 2.0**10, 2.0**60
#: Classical refinement goes on while each step gains at least this factor, and for so many steps.
GAIN, CLASSICAL_STEPS = 4.0, 10
#: GMRES starts anew so often: with factors applied in their own precision, it predicts no more digits than they have.
RESTART = 8
#: Beyond this condition·u, u the factors' roundoff, 50 steps of GMRES were never enough (experiments with n = 300).
HOPELESS = 2.0**10
#: Signs of an ill-conditioned matrix, upon which the condition is estimated at once: pivots of so different size, or
#: corrections so large beside the solution.
DOUBT = 2.0**-16
#: The backward error eta of plain LU is seldom above this or above 4/n, whichever is larger.
PLAIN_LU = 2.0**-7


@dataclass(frozen=True, slots=True)
class SolveInfo:
    """How a solve went, and how far its result can be trusted.

    backward_error  ||b-Ax|| / ((||A||·||x|| + ||b||)·n·u), infinity norm, u of x's type; the worst right-hand side
    iterations      steps of classical refinement, or of GMRES, of the right-hand side that took most
    precision       the precision of the factors in the end
    emulated        their products' operands were rounded in software: right numbers, but fp32's speed
    condition       estimate of the one-norm condition number of A, as scaled
    growth          max |u_ij| / max |a_ij|, as scaled
                    (both are computed when first asked for; until then this object keeps the factors)
    scaled          rows and columns were scaled before the factorization
    fallback        the precision asked for did not do, and A was factored again in fp64
    times           seconds by phase: equilibrate, factor, refine
    history         the worst backward error at the start and after each step, of the scaled system
    """

    outcome: Outcome
    n: int
    rhs: int
    precision: str
    emulated: bool
    iterations: int
    backward_error: float
    scaled: bool
    fallback: bool
    message: str
    times: dict[str, float] = field(repr=False)
    history: tuple[float, ...] = field(repr=False)
    _estimates: Estimates = field(repr=False, compare=False)

    @property
    def condition(self) -> float:
        """An estimate by Higham's method, from a few solves with the factors; rarely 3 times too small."""
        return self._estimates.values()[0]

    @property
    def growth(self) -> float:
        """How much larger than A's entries the elimination made them."""
        return self._estimates.values()[1]

    @property
    def solved(self) -> bool:
        """Whether x is as accurate as a stable solver in the input's type makes it."""
        return self.outcome is Outcome.SOLVED

    def __str__(self) -> str:
        verdict = "solved" if self.solved else "NOT SOLVED"
        sides = "" if self.rhs == 1 else f", {self.rhs} right-hand sides"
        emulated = " (emulated)" if self.emulated else ""
        steps = f"{self.iterations} refinement step{'' if self.iterations == 1 else 's'}"
        times = ", ".join(f"{name} {time_s:.3g} s" for name, time_s in self.times.items())
        lines = [
            f"{verdict}: n = {self.n}{sides}, LU in {self.precision}{emulated}, {steps}",
            f"  backward error  {self.backward_error:.2e}",
            f"  condition       {self.condition:.2e} (estimate)",
            f"  growth          {self.growth:.2e}",
            f"  time            {times}",
        ]
        if not self.solved:
            lines.append(f"  {self.outcome}")
        return "\n".join([*lines, *(f"  {line}" for line in self.message.splitlines())])


def solve(A: Any, b: Any, *, precision: str = "auto", device: str = "auto") -> tuple[Array, SolveInfo]:
    """Solve A x = b to the accuracy of the input's type; neither A nor b is changed.

    A: n×n, in any memory order; b: (n,) or (n, k).  Integers become fp64, 16-bit numbers fp32; the result has the
    type that A and b promote to.  `precision` is that of the factors: auto, fp64, fp32, tf32, bf16, fp16 or fp8.
    """
    _check_device(device)
    A, b = _matrix(A), _right_hand_side(b)
    _check_shapes(A, b)
    A = A.astype(_with_precision_of(A.dtype, np.result_type(A, b)), copy=False)
    return _factored(A, precision, _columns(b) * (2 if _only_b_is_complex(A, b) else 1)).solve(b)


def lu_factor(A: Any, *, precision: str = "auto", device: str = "auto") -> LUFactors:
    """Factor A once, to solve for many b: `lu_factor(A).solve(b)`.  A is kept, not copied: leave it unchanged."""
    _check_device(device)
    A = _matrix(A)
    return _factored(A, precision, 1)


class LUFactors:
    """A and its factors.  A is needed for residuals and must not be changed while these are used."""

    def __init__(self, A: Array, factors: Factors, spans: Spans, notes: tuple[str, ...], most: int):
        self.A = A
        self._most = most  # steps of GMRES
        self._factors = factors
        self._notes = notes
        self._spans = spans

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
        return f"LUFactors({n}x{n} {self.A.dtype}, precision={self.precision!r})"

    def solve(self, b: Any) -> tuple[Array, SolveInfo]:
        """Solve A x = b, b (n,) or (n, k), in A's precision.

        Where the factors turn out to be too coarse, A is factored in fp64, and those factors are kept.
        """
        b = _right_hand_side(b)
        _check_shapes(self.A, b)
        # The factorization's time belongs to the first solve.
        spans, self._spans = self._spans, Spans()
        B = _block(b, self.A.dtype)
        done = _refined(self.A, self._factors, B, spans, self._most)
        if done.outcome is not Outcome.SOLVED and self.precision != "fp64":
            note = _note_of_fallback(self.precision, done, self._factors)
            self._factors = _factor_in_fp64(self.A, spans)
            self._notes += (note,)
            done = _refined(self.A, self._factors, B, spans, self._most)
        x = done.X[:, : _columns(b)]
        if _only_b_is_complex(self.A, b):
            x = x + 1j * done.X[:, _columns(b) :]
        return x.reshape(b.shape), self._info(done, spans, _columns(b))

    def _info(self, done: Refined, spans: Spans, rhs: int) -> SolveInfo:
        factors = self._factors
        notes = self._notes
        if done.doubtful and factors.condition * _u(self.A.dtype) >= 1.0:
            notes += (_note_of_singularity(factors.condition, self.A.dtype),)
        return SolveInfo(
            outcome=done.outcome, n=self.A.shape[0], rhs=rhs, precision=factors.precision,
            emulated=factors.precision not in ("fp64", "fp32"), iterations=done.steps, backward_error=done.eta,
            scaled=factors.scaling is not None, fallback=bool(self._notes), message="\n".join(notes),
            times={name: phase.time_s for name, phase in spans.phases.items()}, history=tuple(done.history),
            _estimates=Estimates(factors),
        )  # fmt: skip


# --- what comes in -------------------------------------------------------------------------------------------------


def _check_device(device: str) -> None:
    if device in ("auto", "cpu"):
        return
    if device.split(":")[0] == "cuda":
        raise ResourceError(f'device="{device}": there are no kernels for GPUs yet; say device="cpu"')
    raise UsageError(f'unknown device "{device}"; choose one of auto, cpu')


def _matrix(values: Any) -> Array:
    A = _numbers(values, "A")
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise UsageError(f"A has shape {A.shape}; solve takes square matrices (for least squares: numpy.linalg.lstsq)")
    if A.size == 0:
        raise UsageError("A is empty, of shape (0, 0): there is nothing to solve")
    # Rows or columns must be contiguous and go upwards, as BLAS needs them; anything else is copied.
    return A if _by_rows(A) or _by_rows(A.T) else np.ascontiguousarray(A)


def _right_hand_side(values: Any) -> Array:
    b = _numbers(values, "b")
    if b.ndim not in (1, 2):
        raise UsageError(f"b has shape {b.shape}; give one right-hand side as (n,), k of them as (n, k)")
    _check_finite(b, "b")
    return b


def _check_shapes(A: Array, b: Array) -> None:
    if b.shape[0] != A.shape[0]:
        raise UsageError(f"A is {A.shape[0]}x{A.shape[1]}, but b has shape {b.shape}: it needs {A.shape[0]} rows")
    if b.size == 0:
        raise UsageError(f"b is empty, of shape {b.shape}: there is nothing to solve")


def _numbers(values: Any, name: str) -> Array:
    """An array of one of the four types that LAPACK knows; copied only where the type changes."""
    array: Array = np.asarray(values)
    if array.dtype.kind in "biu":
        return array.astype(np.float64)
    if array.dtype.name in ("float16", "bfloat16"):
        return array.astype(np.float32)
    native = array.dtype.newbyteorder("=")
    if native not in lapack.LETTERS:
        raise UsageError(
            f"{name} has dtype {array.dtype}; solve takes float16 to float64, bfloat16, complex64, complex128 and "
            f"integers; convert it, for example {name}.astype(float)"
        )
    return np.asarray(np.require(array, native, "A"))


def _check_finite(array: Array, name: str) -> None:
    finite = np.isfinite(array)
    if finite.all():
        return
    index = tuple(int(i) for i in np.unravel_index(int(np.argmin(finite)), array.shape))
    where = ", ".join(map(str, index))
    raise UsageError(f"{name}[{where}] is {array[index]}: {array.size - int(finite.sum())} of {array.size} entries of "
                     f"{name} are not finite")  # fmt: skip


def _by_rows(A: Array) -> bool:
    """Whether BLAS can take A as it lies: contiguous rows, one after the other with or without a gap."""
    down, across = A.strides
    n = A.shape[1]
    return n == 1 or (across == A.itemsize and down >= n * A.itemsize and down % A.itemsize == 0)


def _columns(b: Array) -> int:
    return 1 if b.ndim == 1 else b.shape[1]


def _only_b_is_complex(A: Array, b: Array) -> bool:
    return b.dtype.kind == "c" and A.dtype.kind != "c"


def _block(b: Array, dtype: np.dtype[Any]) -> Array:
    """b as a column-major block of A's type; for a real A, real and imaginary parts are columns of their own."""
    columns = b.reshape(b.shape[0], -1)
    if columns.dtype.kind == "c" and dtype.kind != "c":
        columns = np.concatenate([columns.real, columns.imag], axis=1)
    return np.asarray(columns, dtype=dtype, order="F")


def _with_precision_of(dtype: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """dtype's field, real or complex, in the other's precision."""
    return _typed(dtype.kind == "c", wide=_u(other) < 2.0**-24)


def _typed(is_complex: bool, *, wide: bool) -> np.dtype[Any]:
    if is_complex:
        return np.dtype(np.complex128 if wide else np.complex64)
    return np.dtype(np.float64 if wide else np.float32)


def _u(dtype: np.dtype[Any]) -> float:
    """Unit roundoff of a type."""
    return float(np.finfo(dtype).eps) / 2


# --- the factors ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scaling:
    """D_r and D_c: powers of two that bring the largest entry of each row and column near 1; ||A||_inf without them."""

    rows: Array
    columns: Array
    A_inf: float


@dataclass(frozen=True)
class Factors:
    """P A_s = L U, or P A_s^T = L U where A lies by rows; singular: the first zero pivot, from 1."""

    precision: str
    LU: Array
    pivots: Array
    transposed: bool
    scaling: Scaling | None
    sizes: Sizes  # of A_s^T
    singular: int

    @property
    def A_inf(self) -> float:
        """||A_s||_inf."""
        return self.sizes.norms[0 if self.transposed else 1]

    @cached_property
    def condition(self) -> float:
        """||A_s||_1·||A_s^-1||_1, the latter estimated by a few solves."""
        if self.singular:
            return float("inf")
        A_one = self.sizes.norms[1 if self.transposed else 0]
        return A_one * lapack.inverse_norm(self.LU, self.pivots, infinity=self.transposed)

    @cached_property
    def growth(self) -> float:
        """max |u_ij| / max |a_ij|."""
        return _largest_of_upper(self.LU) / self.sizes.largest if self.sizes.largest else 1.0

    @property
    def fit(self) -> bool:
        """Whether GMRES has a chance with them."""
        return self.condition * PRECISIONS[self.precision].u <= HOPELESS

    @property
    def even(self) -> bool:
        """Whether U's diagonal shows no sign of singularity; not all singular matrices show one there."""
        diagonal = np.abs(self.LU.diagonal())
        return bool(diagonal.min() >= DOUBT * diagonal.max())

    def apply(self, R: Array) -> Array:
        """A_s^-1 R, each column brought near 1 for the factors' range; a new block of R's type."""
        low = np.empty(R.shape, self.LU.dtype, order="F")
        with np.errstate(all="ignore"):
            if low.dtype == R.dtype:
                low[:] = R
                lapack.getrs(self.LU, self.pivots, low, b"T" if self.transposed else b"N")
                return low
            scale = _power(np.abs(R).max(axis=0))
            np.multiply(R, scale, out=low, casting="same_kind")
            lapack.getrs(self.LU, self.pivots, low, b"T" if self.transposed else b"N")
            return np.asfortranarray(np.divide(low, scale, dtype=R.dtype))


class Estimates:
    """Condition and growth of factors, which are let go once these are known."""

    def __init__(self, factors: Factors):
        self._factors: Factors | None = factors
        self._values = (0.0, 0.0)

    def values(self) -> tuple[float, float]:
        """Condition and growth."""
        factors = self._factors
        if factors is not None:
            self._values = factors.condition, factors.growth
            self._factors = None
        return self._values


def _factored(A: Array, name: str, sides: int) -> LUFactors:
    """A's factors in a precision, or in fp64 where that one fails altogether."""
    chosen = _chosen(A, name, sides)
    spans = Spans()
    notes: tuple[str, ...] = ()
    factors = _factor_in_fp64(A, spans) if chosen == "fp64" else _factor(A, chosen, spans)
    if factors.singular and chosen != "fp64":
        notes = (f"the LU in {chosen} broke down: pivot {factors.singular} is zero; A was factored again in fp64",)
        factors = _factor_in_fp64(A, spans)
    # Where fp64 may be had for the asking, GMRES must not cost more than its LU would.
    most = refine.MOST_STEPS if name != "auto" else min(refine.MOST_STEPS, A.shape[0] // ORDERS_PER_STEP)
    return LUFactors(A, factors, spans, notes, most)


def _factor_in_fp64(A: Array, spans: Spans) -> Factors:
    """A's factors in fp64, beyond which there is nothing to fall back to."""
    factors = _factor(A, "fp64", spans)
    if factors.singular:
        raise SingularError(
            f"A is singular: pivot {factors.singular} of {A.shape[0]} is exactly zero; "
            "check the matrix, or solve in the sense of least squares (numpy.linalg.lstsq)"
        )
    return factors


def _chosen(A: Array, name: str, sides: int) -> str:
    """The precision of the factors; auto: fp32, unless fp64 costs less or the input is fp32 anyway."""
    if name != "auto":
        if name not in PRECISIONS:
            raise UsageError(f"unknown precision {name!r}; choose one of auto, {', '.join(PRECISIONS)}")
        return name
    n = A.shape[0]
    narrow = _u(A.dtype) == 2.0**-24
    return "fp32" if narrow or (n >= FP32_FROM and sides * ORDERS_PER_SIDE <= n) else "fp64"


def _factor(A: Array, name: str, spans: Spans) -> Factors:
    """Scale if need be, copy once into the factors' type, and factor."""
    R = A if _by_rows(A) else A.T
    transposed = R is A
    wide = name == "fp64"
    low = _typed(A.dtype.kind == "c", wide=wide)
    W = _room(R.shape, low)
    with spans("equilibrate"):
        scaling = None
        sizes = _fill(W, R, None)
        if PRECISIONS[name].bytes < 4 or not sizes.balanced:
            _check_finite(A, "A")
            scales = _equilibration(R)
            scaling = Scaling(*(scales if transposed else scales[::-1]), _inf_norm(R, transposed))
            sizes = _fill(W, R, scales)
    LU, pivots = W.T, np.empty(A.shape[0], np.int32)
    with spans("factor"):
        rounding = name not in ("fp64", "fp32")
        singular = lapack.getrf_rounded(LU, pivots, name) if rounding else lapack.getrf(LU, pivots)
    return Factors(name, LU, pivots, transposed, scaling, sizes, singular)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A matrix's sums of absolute values along rows and columns, and its largest."""

    row_sums: Array
    column_sums: Array
    largest: float

    @property
    def norms(self) -> tuple[float, float]:
        """The infinity-norm and the one-norm."""
        return float(self.row_sums.max()), float(self.column_sums.max())

    @property
    def balanced(self) -> bool:
        """Whether range and spread suit the LU as they are; NaN and Inf do not."""
        sums = (self.row_sums, self.column_sums)
        most, least = max(float(s.max()) for s in sums), min(float(s.max()) for s in sums)
        if not 1 / RANGE < least <= most < RANGE:
            return False
        return all(float(s.max()) <= SPREAD * float(s.min()) for s in sums)


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised matrix; a large one in ordinary pages.

    NumPy asks for huge ones.  On virtual machines whose host reclaims free memory these are rarely at hand: a first
    touch then took 0.6 s for 256 MB, more than a third of the LU, against 0.09 s in the pages that others just freed.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.empty(shape, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype).reshape(shape)


def _fill(W: Array, R: Array, scales: tuple[Array, Array] | None) -> Sizes:
    """W = R, scaled and cast; where W is large by BLAS's number of threads, since the system clears its pages."""
    threads = (blas.blas_facts()["threads"] or 1) if W.nbytes >= LARGE else 1
    if threads == 1:
        return _fill_rows(W, R, scales)

    def fill(rows: slice) -> Sizes:
        return _fill_rows(W[rows], R[rows], None if scales is None else (scales[0][rows], scales[1]))

    n = R.shape[0]
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(fill, [slice(n * t // threads, n * (t + 1) // threads) for t in range(threads)]))
    return Sizes(
        np.concatenate([part.row_sums for part in parts]),
        np.sum([part.column_sums for part in parts], axis=0),
        max(part.largest for part in parts),
    )


def _fill_rows(W: Array, R: Array, scales: tuple[Array, Array] | None) -> Sizes:
    """W = R, scaled and cast; summed up while each piece is in the cache, so that R is read once."""
    row_sums, column_sums, largest = np.empty(R.shape[0]), np.zeros(R.shape[1]), 0.0
    room = np.empty((_rows_at_a_time(R), R.shape[1]), W.real.dtype)
    with np.errstate(all="ignore"):  # what overflows is seen in the sums
        for piece in _pieces(R):
            if scales is None:
                W[piece] = R[piece]
            else:
                W[piece] = R[piece] * (scales[0][piece, None] * scales[1])
            found = np.abs(W[piece], out=room[: len(W[piece])])
            row_sums[piece] = found.sum(axis=1)
            column_sums += found.sum(axis=0)
            largest = max(largest, float(found.max()))
    return Sizes(row_sums, column_sums, largest)


def _equilibration(R: Array) -> tuple[Array, Array]:
    """Powers of two for R's rows and columns: one kind by its largest entries, then the other by what that leaves.

    First comes the kind whose largest entries spread more.  Were rows of different scale dealt with by columns first,
    the one largest row would set every column's scale, and the others could underflow.
    """
    by_row, by_column = np.ones(R.shape[0]), np.ones(R.shape[1])
    row_max, column_max = _largest(R, by_row, by_column)
    if _spread(row_max) >= _spread(column_max):
        by_row = _power(row_max)
        return by_row, _power(_largest(R, by_row, by_column)[1])
    by_column = _power(column_max)
    return _power(_largest(R, by_row, by_column)[0]), by_column


def _largest(R: Array, by_row: Array, by_column: Array) -> tuple[Array, Array]:
    """The largest entries of the rows and of the columns of |R|, scaled."""
    row_max, column_max = np.empty(R.shape[0]), np.zeros(R.shape[1])
    for piece in _pieces(R):
        sizes = np.abs(R[piece]) * by_row[piece, None] * by_column
        row_max[piece] = sizes.max(axis=1)
        np.maximum(column_max, sizes.max(axis=0), out=column_max)
    return row_max, column_max


def _spread(largest: Array) -> int:
    """How many powers of two lie between the numbers other than zero."""
    exponents = np.frexp(largest[largest > 0])[1]
    return int(np.ptp(exponents)) if exponents.size else 0


def _inf_norm(R: Array, by_rows: bool) -> float:
    """||R||_inf, or that of R^T."""
    sums = np.zeros(R.shape[0])
    with np.errstate(over="ignore"):
        for piece in _pieces(R):
            if by_rows:
                sums[piece] = np.abs(R[piece]).sum(axis=1)
            else:
                sums += np.abs(R[piece]).sum(axis=0)
    return float(sums.max())


def _power(largest: Array) -> Array:
    """The power of two that brings each number to [1/2, 1); 1 for a zero."""
    return np.asarray(np.ldexp(1.0, np.clip(-np.frexp(largest)[1], -1000, 1000)))


def _rows_at_a_time(A: Array) -> int:
    return int(min(max(1, CACHED // A.shape[1]), A.shape[0]))


def _pieces(A: Array) -> Iterator[slice]:
    rows = _rows_at_a_time(A)
    return (slice(i, i + rows) for i in range(0, A.shape[0], rows))


def _largest_of_upper(LU: Array) -> float:
    """max |u_ij|, inf if one is not finite: the numbers above the diagonal, and few below it."""
    largest, n = 0.0, LU.shape[0]
    width = max(1, CACHED // n)
    for j0 in range(0, n, width):
        j1 = min(j0 + width, n)
        above, block = LU[:j0, j0:j1], np.triu(LU[j0:j1, j0:j1])
        found = max(float(np.abs(part).max(initial=0.0)) for part in (above, block))
        if not isfinite(found):
            return float("inf")
        largest = max(largest, found)
    return largest


def _note_of_fallback(name: str, done: Refined, factors: Factors) -> str:
    return (
        f"the LU in {name} was too coarse: steps {done.steps}, backward error {done.eta:.1e} "
        f"(condition {factors.condition:.1e}, growth {factors.growth:.1e}); A was factored again in fp64"
    )


def _note_of_singularity(condition: float, dtype: np.dtype[Any]) -> str:
    return (
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / _u(dtype):.1e}; "
        "the residual is small, but x may have no correct digit"
    )


# --- refinement ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Refined:
    """Solutions X of A X = B; eta: the worst backward error; doubtful: A may be singular to working precision."""

    X: Array
    eta: float
    outcome: Outcome
    steps: int
    history: list[float]
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Equations:
    """A_s Y = B_s, all its right-hand sides at once, in the input's type."""

    A: Array
    factors: Factors
    B: Array

    def of(self, columns: Array) -> Equations:
        """Those of some right-hand sides."""
        if len(columns) == self.B.shape[1]:
            return self
        return Equations(self.A, self.factors, np.asfortranarray(self.B[:, columns]))

    def times(self, Y: Array) -> Array:
        """A_s Y."""
        return np.asarray(-self._minus(np.zeros_like(Y), Y))

    def residual(self, Y: Array) -> Array:
        """B_s - A_s Y."""
        return self._minus(self.B, Y)

    def _minus(self, B: Array, Y: Array) -> Array:
        scaling = self.factors.scaling
        if scaling is None:
            return _minus_product(B, self.A, Y)
        return B + _by(scaling.rows, _minus_product(np.zeros_like(Y), self.A, _by(scaling.columns, Y)))

    def eta(self, R: Array, Y: Array) -> Array:
        """The backward error of each column."""
        return _eta(R, Y, self.B, self.factors.A_inf)


def _minus_product(B: Array, A: Array, Y: Array) -> Array:
    """B - A Y as a new block."""
    R = B.copy(order="F")
    lapack.subtract_product(R, A, np.asfortranarray(Y))
    return R


def _eta(R: Array, Y: Array, B: Array, A_inf: float) -> Array:
    """||r|| / ((||A||·||y|| + ||b||)·n·u) in the infinity norm, of each column; NaN where that is not finite."""
    residual, y_inf, b_inf = (np.abs(V).max(axis=0).astype(np.float64) for V in (R, Y, B))
    per_A = 1.0 / A_inf if A_inf else 1.0  # divided first: the product of norms may overflow
    scale = (y_inf + b_inf * per_A) * R.shape[0] * _u(R.dtype)
    return np.asarray(np.divide(residual * per_A, scale, out=residual, where=scale != 0))


def _by(diagonal: Array, X: Array) -> Array:
    return np.asarray(np.multiply(X, diagonal[:, None], dtype=X.dtype, casting="same_kind"))


def _refined(A: Array, factors: Factors, B: Array, spans: Spans, most: int) -> Refined:
    """Solve A X = B: classical refinement of all columns, then GMRES for those that it leaves."""
    with spans("refine"), np.errstate(all="ignore"):
        scaling = factors.scaling
        equations = Equations(A, factors, B if scaling is None else _by(scaling.rows, B))
        enough = max(4.0 / A.shape[0], PLAIN_LU)
        Y, etas, history, doubtful = _classical(equations, enough)
        steps = len(history) - 1
        left = np.flatnonzero(~(etas <= enough))
        for j in left if left.size and factors.fit else ():
            done = _gmres(equations, int(j), enough, most)
            steps, history = max(steps, done.steps), [*history, *done.history]
            Y[:, j], etas[j] = done.x[:, 0], done.eta
            if not done.eta <= enough:
                break
        X, eta = Y, _worst(etas)
        if scaling is not None:
            X = _by(scaling.columns, Y)
            eta = max(eta, _worst(_eta(_minus_product(B, A, X), X, B, scaling.A_inf)))
        outcome = Outcome.SOLVED if eta <= enough else Outcome.NOT_CONVERGED
        if not np.isfinite(X).all():
            outcome = Outcome.NOT_FINITE
        return Refined(X, eta, outcome, steps, history, doubtful)


def _classical(equations: Equations, enough: float) -> tuple[Array, Array, list[float], bool]:
    """Y = Y + A_s^-1 (B_s - A_s Y) while that pays; Y, its columns' backward errors, each step's worst, and any doubt.

    Factors in the input's own precision are refined to what plain LU reaches; coarser ones to a residual of one
    roundoff, u·(||A||·||x|| + ||b||), which costs a step more and beats plain LU.  That coarse factors get there proves
    that condition·u is far below 1; for the others, one correction tells.
    """
    same = equations.factors.LU.dtype == equations.A.dtype
    aim = enough if same else 1.0 / equations.A.shape[0]
    factors = equations.factors
    Y = factors.apply(equations.B)
    R = equations.residual(Y)
    etas = equations.eta(R, Y)
    history = [_worst(etas)]
    doubtful = same and _signs_of_singularity(factors, R, Y)
    pending = np.flatnonzero(~(etas <= aim))
    while pending.size and len(history) <= CLASSICAL_STEPS:
        part = equations.of(pending)
        new = Y[:, pending] + factors.apply(R[:, pending] if len(history) == 1 else R)
        R = part.residual(new)
        found = part.eta(R, new)
        better = found < etas[pending]
        Y[:, pending[better]], etas[pending[better]] = new[:, better], found[better]
        history.append(_worst(etas))
        if not GAIN * history[-1] <= history[-2]:
            break
        left = ~(found <= aim)
        pending, R = pending[left], R[:, left]
    return Y, etas, history, doubtful if same else not history[-1] <= enough


def _signs_of_singularity(factors: Factors, R: Array, Y: Array) -> bool:
    """Whether pivots, or the correction of one column, hint at a condition near 1/u."""
    j = int(np.argmax(np.abs(R).max(axis=0)))
    correction = factors.apply(R[:, j : j + 1])
    return not (factors.even and np.abs(correction).max() <= DOUBT * np.abs(Y[:, j]).max())


def _worst(etas: Array) -> float:
    """The largest, inf for a NaN."""
    worst = float(etas.max())
    return worst if isfinite(worst) else float("inf")


def _gmres(equations: Equations, j: int, enough: float, most: int) -> refine.Refinement:
    """GMRES for one column, from the start: its residual falls faster than that of any classical refinement.

    `refine` counts in fp64's roundoff; other types have their own.
    """
    unit = _u(equations.A.dtype) / refine.U
    column = Equations(equations.A, equations.factors, equations.B[:, j : j + 1])
    done = refine.refine(OneColumn(column), restart=RESTART, most=most, target=enough * unit)
    done.eta /= unit
    done.history = [eta / unit for eta in done.history]
    return done


class OneColumn:
    """One right-hand side as `refine` wants it: its vectors are blocks of one column."""

    def __init__(self, equations: Equations):
        self._equations = equations
        self.n = equations.A.shape[0]
        self.A_inf = equations.factors.A_inf
        self.b = equations.B
        self.unknowns: Space = Columns()
        self.equations = self.unknowns
        self.b_inf = self.unknowns.max_abs(self.b)

    def residual(self, x: Array) -> Array:
        """b - A x."""
        return self._equations.residual(x)

    def multiply(self, v: Array) -> Array:
        """A v."""
        return self._equations.times(v)

    def precondition(self, r: Array) -> Array:
        """U^-1 L^-1 r."""
        return self._equations.factors.apply(r)

    def add(self, x: Array, d: Array) -> None:
        """x += d in place."""
        x += d

    def subtract(self, r: Array, d: Array) -> Array:
        """r - d."""
        return r - d


class Columns:
    """The space of blocks of one column."""

    def basis(self, most: int) -> Basis:
        """Room for so many vectors."""
        return ColumnBasis(most)

    def norm(self, w: Array) -> float:
        """||w||_2."""
        return float(np.linalg.norm(w))

    def max_abs(self, w: Array) -> float:
        """||w||_inf."""
        return float(np.abs(w).max())


class ColumnBasis:
    """Vectors v_1 … v_k, kept as rows, each contiguous."""

    def __init__(self, most: int) -> None:
        self._most, self._k = most, 0
        self._room: Array = np.empty((0, 0))

    def append(self, w: Array, factor: float) -> Array:
        """v_{k+1} = factor · w."""
        if not self._k:
            self._room = np.empty((self._most, len(w)), w.dtype)
        v = self._room[self._k, :, None]
        np.multiply(w, factor, out=v)
        self._k += 1
        return v

    def project(self, w: Array) -> list[Any]:
        """h = V^H w and w = w - V h in place."""
        V = self._room[: self._k]
        h = (V @ w.conj()).conj()
        w -= V.T @ h
        return list(h[:, 0].tolist())

    def combine(self, y: list[Any]) -> Array:
        """Σ y_k v_k."""
        return np.asarray(self._room[: len(y)].T @ np.array(y, self._room.dtype)[:, None])
