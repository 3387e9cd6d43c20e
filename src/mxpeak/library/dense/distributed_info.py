"""Diagnostics that a distributed dense solve returns with x."""

from __future__ import annotations

from dataclasses import dataclass, field

from mxpeak.errors import Outcome
from mxpeak.library.dense.info import doubt, line_of_error, line_of_row_error, line_of_times
from mxpeak.library.outcomes import Info
from mxpeak.records import size_text
from mxpeak.solvers.refine import U


@dataclass(frozen=True, slots=True)
class DistributedInfo(Info):
    """Diagnostics for the solution of a distributed dense system.

    All attributes except `times` have the same values on every rank. Use `info.solved` in conditions, because an info
    object has no truth value.

    Attributes
    ----------
    outcome : Outcome
        Outcome of the solve.
    solved : bool
        Whether x is as accurate as the result of a stable fp64 solver.
    converged : bool
        Alias for `solved`.
    n : int
        Order of the matrix A.
    rhs : int
        Number of right-hand sides.
    precision : str
        Precision of the factors after the solve. Formats narrower than fp32 apply only to the operands of matrix
        products.
    emulated : bool
        Whether mxpeak rounded the operands of matrix products to this precision in software. If so, the speed is that
        of fp32, not of the emulated format.
    iterations : int
        Largest number of refinement steps for any right-hand side. One step is one correction or one GMRES iteration.
    backward_error : float
        Normwise backward error ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) of the worst right-hand side, in the infinity
        norm. For a complex system, mxpeak computes the error of the equivalent real system. The error of the complex
        system itself is at most twice as large.
    componentwise_error : float
        Row-wise backward error max_i |b - A x|_i / ((|A||x| + |b|)_i·n·u) of the worst right-hand side.
    condition : float or None
        Estimated one-norm condition number of A, after any scaling. The value is None if the pivots and corrections
        gave no reason to compute an estimate. For a complex system, the estimate applies to the equivalent real system,
        whose condition number is at most twice as large.
    growth : float
        Pivot growth factor max |u_ij| / max |a_ij|, after any scaling.
    scaled : bool
        Whether mxpeak scaled the rows and columns of A before the factorization.
    fallback : bool
        Whether the first factorization failed, so that mxpeak factored A again in fp64.
    ill_conditioned : bool
        Whether x may have no correct digits despite a small backward error. Possible causes are a singular matrix,
        columns of very different magnitudes, and underflow in x.
    message : str
        Notes and advice, one per line, or an empty string.
    u : float
        Unit roundoff of fp64, which is the precision of x.
    grid : tuple of int
        Numbers of rows and columns of the process grid, (P, Q).
    nb : int
        Block size of the block-cyclic distribution.
    bytes_a_rank : int
        Planned memory in bytes, on the rank that needs the most memory. The value includes the fp64 factors, panels,
        vectors and stored entries of A.
    times : dict of str to float
        Time in seconds that this rank spent in each phase: "make", "equilibrate", "factor" and "refine".
    history : tuple of float
        Backward errors of the worst right-hand side, at the start and after each step or GMRES cycle.

    See Also
    --------
    DistributedFactors.condition : Estimate that is available in every case.
    """

    outcome: Outcome
    n: int
    rhs: int
    iterations: int
    backward_error: float
    componentwise_error: float
    condition: float | None
    growth: float
    scaled: bool
    ill_conditioned: bool
    message: str
    grid: tuple[int, int]
    nb: int
    bytes_a_rank: int
    times: dict[str, float] = field(repr=False)
    history: tuple[float, ...] = field(repr=False)
    precision: str = "fp64"
    emulated: bool = False
    fallback: bool = False
    u: float = U

    @property
    def solved(self) -> bool:
        """Return whether x is as accurate as the result of a stable fp64 solver."""
        return self.outcome is Outcome.SOLVED

    def __str__(self) -> str:
        verdict = "solved" if self.solved else "NOT SOLVED"
        if self.solved and self.ill_conditioned:
            verdict += doubt(singular=self.condition is not None and self.condition * self.u >= 1.0)
        sides = "" if self.rhs == 1 else f", {self.rhs} right-hand sides"
        steps = f"{self.iterations} refinement step{'' if self.iterations == 1 else 's'}"
        P, Q = self.grid
        again = ", after a coarser one failed," if self.fallback else ""
        lines = [
            f"{verdict}: n = {self.n}{sides}, LU in {self.precision}{again} on {P}x{Q} ranks, NB = {self.nb}, {steps}",
            line_of_error(self.backward_error, self.n, self.u),
            line_of_row_error(self.componentwise_error, self.n, self.u),
            f"  growth          {self.growth:.2e}",
            f"  memory          {size_text(self.bytes_a_rank)} per rank",
            line_of_times(self.times),
        ]
        if self.condition is not None:
            lines.insert(3, f"  condition       {self.condition:.2e} (estimate)")
        return self._told(lines)
