"""solve and lu_factor: which precision, what to do where it fails, and what to tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mxpeak.dense.factors import Estimates, Factors, factor, factor_in_fp64
from mxpeak.dense.inputs import (
    Array,
    block,
    check_shapes,
    columns,
    matrix,
    only_b_is_complex,
    right_hand_side,
    roundoff,
    with_precision_of,
)
from mxpeak.dense.refinement import Refined, refined
from mxpeak.errors import Outcome, UsageError
from mxpeak.inputs import check_device
from mxpeak.precision import PRECISIONS
from mxpeak.solvers import refine
from mxpeak.spans import Spans

#: Below this order an fp64 LU is so quick that refining a fp32 one would not pay.
FP32_FROM = 250
#: fp32 pays while there are n / this many right-hand sides: refining each costs some 9·n² flops, mostly slow ones, and
#: the LU saves the time of n³/3.
ORDERS_PER_SIDE = 128
#: A step of GMRES takes about the time of an fp64 LU by n / this.
ORDERS_PER_STEP = 64


@dataclass(frozen=True, slots=True)
class SolveInfo:
    """How a solve went, and how far its result can be trusted.

    backward_error  ||b-Ax|| / ((||A||·||x|| + ||b||)·n·u), infinity norm, u of x's type; the worst right-hand side
                    (of more than 8, solved in one precision: about the root mean square, from a random combination)
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
        emulated += ", after a coarser one failed" if self.fallback else ""
        steps = f"{self.iterations} refinement step{'' if self.iterations == 1 else 's'}"
        times = ", ".join(f"{name} {time_s:.3g} s" for name, time_s in self.times.items())
        lines = [
            f"{verdict}: n = {self.n}{sides}, LU in {self.precision}{emulated}, {steps}",
            f"  backward error  {self.backward_error:.2e}",
            f"  condition       {self.condition:.2e} (estimate)",
            f"  growth          {self.growth:.2e}",
            f"  time            {times}",
        ]
        if self.scaled:
            lines.append("  rows and columns were scaled by powers of two")
        if not self.solved:
            lines.append(f"  {self.outcome}")
        return "\n".join([*lines, *(f"  {line}" for line in self.message.splitlines())])


def solve(A: Any, b: Any, *, precision: str = "auto", device: str = "auto") -> tuple[Array, SolveInfo]:
    """Solve A x = b to the accuracy of the input's type; neither A nor b is changed.

    A: n×n, in any memory order; b: (n,) or (n, k).  Integers become fp64, 16-bit numbers fp32; the result has the
    type that A and b promote to.  `precision` is that of the factors: auto, fp64, fp32, tf32, bf16, fp16 or fp8.
    Where factors in a low precision do not lead to the accuracy of plain LU in the input's type, A is factored again in
    fp64, and `info` says so; it also holds outcome, backward error, condition, steps and times: print(info).

    Raises UsageError for what is not square, finite or numeric, and SingularError for a pivot that is exactly zero.
    docs/solving.md explains the rest.

    >>> import mxpeak as mx
    >>> x, info = mx.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0])
    >>> x, info.solved
    (array([1., 1.]), True)
    """
    check_device(device)
    A, b = matrix(A), right_hand_side(b)
    check_shapes(A, b)
    A = A.astype(with_precision_of(A.dtype, np.result_type(A, b)), copy=False)
    return _factored(A, precision, columns(b) * (2 if only_b_is_complex(A, b) else 1)).solve(b)


def lu_factor(A: Any, *, precision: str = "auto", device: str = "auto") -> LUFactors:
    """Factor A once, to solve for many b: `lu_factor(A).solve(b)`.  A is kept, not copied: leave it unchanged."""
    check_device(device)
    A = matrix(A)
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
        b = right_hand_side(b)
        check_shapes(self.A, b)
        # The factorization's time belongs to the first solve.
        spans, self._spans = self._spans, Spans()
        B = block(b, self.A.dtype)
        done = refined(self.A, self._factors, B, spans, self._most)
        if done.outcome is not Outcome.SOLVED and self.precision != "fp64":
            note = _note_of_fallback(self.precision, done, self._factors)
            self._factors = factor_in_fp64(self.A, spans)
            self._notes += (note,)
            done = refined(self.A, self._factors, B, spans, self._most)
        x = done.X[:, : columns(b)]
        if only_b_is_complex(self.A, b):
            x = x + 1j * done.X[:, columns(b) :]
        return x.reshape(b.shape), self._info(done, spans, columns(b))

    def _info(self, done: Refined, spans: Spans, rhs: int) -> SolveInfo:
        factors = self._factors
        notes = self._notes
        if done.doubtful and factors.condition * roundoff(self.A.dtype) >= 1.0:
            notes += (_note_of_singularity(factors.condition, self.A.dtype, done.outcome),)
        return SolveInfo(
            outcome=done.outcome, n=self.A.shape[0], rhs=rhs, precision=factors.precision,
            emulated=factors.precision not in ("fp64", "fp32"), iterations=done.steps, backward_error=done.eta,
            scaled=factors.scaling is not None, fallback=bool(self._notes), message="\n".join(notes),
            times={name: phase.time_s for name, phase in spans.phases.items()}, history=tuple(done.history),
            _estimates=Estimates(factors),
        )  # fmt: skip


def _factored(A: Array, name: str, sides: int) -> LUFactors:
    """A's factors in a precision, or in fp64 where that one fails altogether."""
    chosen = _chosen(A, name, sides)
    spans = Spans()
    notes: tuple[str, ...] = ()
    factors = factor_in_fp64(A, spans) if chosen == "fp64" else factor(A, chosen, spans)
    if factors.singular and chosen != "fp64":
        notes = (f"the LU in {chosen} broke down: pivot {factors.singular} is zero; A was factored again in fp64",)
        factors = factor_in_fp64(A, spans)
    # Where fp64 may be had for the asking, GMRES must not cost more than its LU would.
    most = refine.MOST_STEPS if name != "auto" else min(refine.MOST_STEPS, A.shape[0] // ORDERS_PER_STEP)
    return LUFactors(A, factors, spans, notes, most)


def _chosen(A: Array, name: str, sides: int) -> str:
    """The precision of the factors; auto: fp32, unless fp64 costs less or the input is fp32 anyway."""
    if name != "auto":
        if name not in PRECISIONS:
            raise UsageError(f"unknown precision {name!r}; choose one of auto, {', '.join(PRECISIONS)}")
        return name
    n = A.shape[0]
    narrow = roundoff(A.dtype) == 2.0**-24
    return "fp32" if narrow or (n >= FP32_FROM and sides * ORDERS_PER_SIDE <= n) else "fp64"


def _note_of_fallback(name: str, done: Refined, factors: Factors) -> str:
    steps = f"{done.steps} step{'' if done.steps == 1 else 's'}"
    return (
        f"the LU in {name} was too coarse: after {steps} the backward error was {done.eta:.1e} (by these factors the "
        f"condition is {factors.condition:.1e}, the growth {factors.growth:.1e}); A was factored again in fp64"
    )


def _note_of_singularity(condition: float, dtype: np.dtype[Any], outcome: Outcome) -> str:
    small = "the residual is small, but " if outcome is Outcome.SOLVED else ""
    return (
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / roundoff(dtype):.1e}; "
        f"{small}x may have no correct digit"
    )
