"""What `gmres` tells about a solve, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from mxpeak.errors import Outcome
from mxpeak.library.outcomes import Info


@dataclass(frozen=True, slots=True)
class GmresInfo(Info):
    """How a solve went, and how far its result can be trusted.

    tol             the relative residual that was asked for: rtol, or atol / ||b|| where that is more
    residual        ||b - A x|| / ||b|| of what was returned, in fp64; the worst right-hand side
    iterations      steps of GMRES, of the right-hand side that took most, as are cycles and history
    history         the relative residual at the start and after each cycle, of the scaled system if there is one
    values          the format of the matrix in the inner iteration in the end; `vectors` that of its vectors
    reason          why this preconditioner
    levels          of multigrid, else 1
    colours         groups of rows that a sweep takes one after the other, on the rank that has most; None where it
                    takes single rows
    condition       estimate of the one-norm condition of A, as scaled, if factors of A show that it is large; else None
    ill_conditioned x may have no correct digit, however small the residual: A is singular to working precision
    scaled          rows and columns were scaled by powers of two
    fallback        the precision asked for did not do, and fp64 took over
    bytes           of matrices, preconditioner and basis
    device          where it was solved: cpu, cuda:0 …
    ranks           how many shared the system: n, nnz and residual are those of all, bytes those of the largest
    setup_s, times  seconds before the first step, and seconds by phase; of this rank
    """

    outcome: Outcome
    n: int
    nnz: int
    rhs: int
    tol: float
    residual: float
    iterations: int
    cycles: int
    values: str
    vectors: str
    preconditioner: str
    reason: str
    levels: int
    storage: str
    colours: int | None
    scaled: bool
    fallback: bool
    message: str
    bytes: int
    device: str
    ranks: int
    setup_s: float
    times: dict[str, float] = field(repr=False)
    history: tuple[float, ...] = field(repr=False)
    condition: float | None = None
    ill_conditioned: bool = False

    def __str__(self) -> str:
        verdict = "converged" if self.converged else "NOT CONVERGED"
        if self.converged and self.ill_conditioned:
            verdict += ", but numerically singular"
        sides = "" if self.rhs == 1 else f", {self.rhs} right-hand sides"
        levels = f", {self.levels} levels" if self.levels > 1 else ""
        where = "" if self.device == "cpu" else f" on {self.device}"
        where += "" if self.ranks == 1 else f" on the largest of {self.ranks} ranks"
        order = "row after row" if self.colours is None else _count(self.colours, "colour")
        times = ", ".join(f"{name} {time_s:.3g} s" for name, time_s in self.times.items())
        lines = [
            f"{verdict}: n = {self.n}, {self.nnz} entries{sides}, {_count(self.iterations, 'iteration')} "
            f"in {_count(self.cycles, 'cycle')}",
            f"  residual        {self.residual:.2e} (asked for: {self.tol:.0e})",
            f"  precision       values {self.values}, vectors {self.vectors}, residuals fp64",
            f"  preconditioner  {self.preconditioner}{levels} ({self.reason})",
            f"  storage         {self.storage}, {order}, {self.bytes / 2**20:.3g} MiB{where}",
            f"  time            set-up {self.setup_s:.3g} s; {times}",
        ]
        if self.condition is not None:
            lines.insert(2, f"  condition       {self.condition:.2e} (estimate)")
        return self._told(lines)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
