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
    """Diagnostics of a distributed dense solve.

    All attributes except `times` are the same on every rank. An info has no truth value. Test `info.solved`.

    Attributes
    ----------
    outcome : Outcome
        How the solve ended.
    solved : bool
        Whether x is as accurate as a stable solver in fp64 makes it.
    converged : bool
        The same as `solved`.
    n : int
        Order of A.
    rhs : int
        Number of right-hand sides.
    precision : str
        Precision of the factors at the end. Formats narrower than fp32 apply to the operands of the products.
    emulated : bool
        Whether these operands were rounded in software. The speed is then that of fp32.
    iterations : int
        Refinement steps of the right-hand side that needed most. A step is one correction or one GMRES iteration.
    backward_error : float
        ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) in the infinity norm of the worst right-hand side. For a complex
        system, the value is that of the equivalent real system. The error of the complex system is at most twice as
        large.
    componentwise_error : float
        max_i |b - A x|_i / ((|A||x| + |b|)_i·n·u) of the worst right-hand side.
    condition : float or None
        Estimate of the one-norm condition number of A after scaling. None means that pivots and corrections gave no
        reason to estimate it. For a complex system, the value is that of the real system, which is at most twice as
        large.
    growth : float
        Pivot growth max |u_ij| / max |a_ij| after scaling.
    scaled : bool
        Whether rows and columns were scaled before the factorization.
    fallback : bool
        Whether the requested precision failed and A was factored again in fp64.
    ill_conditioned : bool
        Whether x may have no correct digit, although the backward error is small. Possible reasons are a singular A,
        columns of very different sizes, and an underflow of x.
    message : str
        Notes and advice, one per line. The text is empty if there are none.
    u : float
        Unit roundoff of fp64, the type of x.
    grid : tuple of int
        Process grid (P, Q).
    nb : int
        Block size.
    bytes_a_rank : int
        Bytes planned for the largest rank: fp64 factors, panels, vectors, and its part of A if entries are kept.
    times : dict of str to float
        Seconds of this rank per phase: make, equilibrate, factor and refine.
    history : tuple of float
        Backward error at the start and after each step or GMRES cycle of the worst right-hand side.

    See Also
    --------
    DistributedFactors.condition : An estimate in every case.
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
        """Return whether x is as accurate as a stable solver in fp64 makes it."""
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
