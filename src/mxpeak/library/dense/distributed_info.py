"""How a distributed solve went."""

from __future__ import annotations

from dataclasses import dataclass, field

from mxpeak.errors import Outcome
from mxpeak.library.dense.info import doubt, line_of_error, line_of_row_error, line_of_times
from mxpeak.library.outcomes import Info
from mxpeak.records import size_text
from mxpeak.solvers.refine import U


@dataclass(frozen=True, slots=True)
class DistributedInfo(Info):
    """How a distributed solve went; the same on every rank.  What `SolveInfo` has too means the same here.

    precision       of the factors: fp32 or fp64; a coarser one is that of the operands of the LU's products
    emulated        whether these were rounded to it but multiplied in fp32
    condition       estimate of the one-norm condition of A, as scaled, where pivots or corrections gave reason to doubt
                    it; else None: `lu_factor(A).condition` gives it always
                    of complex systems that of the real form, up to twice as large
    backward_error  in n·u; of complex systems that of the real form: that of A is at most twice it
    componentwise_error
                    the row-wise backward error in n·u, of A itself where it is complex
    grid            (P, Q)
    bytes_a_rank    what the rank with most may hold: fp64 factors, panels, and its part of A where that is held
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
        """Whether x is as accurate as a stable solver in fp64 makes it."""
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
            f"  memory          {size_text(self.bytes_a_rank)} a rank",
            line_of_times(self.times),
        ]
        if self.condition is not None:
            lines.insert(3, f"  condition       {self.condition:.2e} (estimate)")
        return self._told(lines)
