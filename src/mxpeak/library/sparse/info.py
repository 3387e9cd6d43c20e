"""Diagnostics that `gmres` returns with x."""

from __future__ import annotations

from dataclasses import dataclass, field

from mxpeak.errors import Outcome
from mxpeak.library.outcomes import Info


@dataclass(frozen=True, slots=True)
class GmresInfo(Info):
    """Diagnostics of a sparse solve.

    An info has no truth value. Test `info.converged`.

    Attributes
    ----------
    outcome : Outcome
        How the solve ended.
    converged : bool
        Whether every right-hand side reached the tolerance.
    n : int
        Order of A, over all ranks.
    nnz : int
        Number of stored entries of A, over all ranks.
    rhs : int
        Number of right-hand sides.
    tol : float
        Requested relative residual, max(rtol, atol / ||b||). With several right-hand sides, `tol` is the largest value.
    residual : float
        ||b - A x|| / ||b|| of the returned x, in fp64 of the worst right-hand side.
    iterations : int
        Iterations of the right-hand side that needed most.
    cycles : int
        Restart cycles of that right-hand side.
    values : str
        Format of the matrix values in the inner iteration at the end.
    vectors : str
        Format of the vectors in the inner iteration at the end.
    preconditioner : str
        Name of the preconditioner.
    reason : str
        Reason for this preconditioner.
    levels : int
        Number of multigrid levels, or 1 without multigrid.
    storage : str
        Storage format of the matrix.
    colours : int or None
        Number of colors, the groups of rows that a sweep updates together, on the rank with most colors. The number is
        1 without sweeps. None means that a sweep updates single rows.
    scaled : bool
        Whether rows and columns were scaled by powers of two.
    fallback : bool
        Whether low precision stopped converging and fp64 continued.
    message : str
        Notes and advice, one per line. The text is empty if there are none.
    bytes : int
        Bytes of the matrix, the preconditioner and the basis, on the rank with most.
    device : str
        Device of the solve, such as "cpu" or "cuda:0".
    ranks : int
        Number of ranks that shared the system.
    setup_s : float
        Seconds of this rank before the first iteration.
    times : dict of str to float
        Seconds of this rank per phase.
    history : tuple of float
        Relative residual at the start and after each cycle, of the right-hand side that needed most iterations. If A
        was scaled, these are residuals of the scaled system.
    condition : float or None
        Estimate of the one-norm condition number of A after scaling. None means that there are no complete
        factors, or that they show a small condition number.
    ill_conditioned : bool
        Whether A is singular to working precision. If so, x may have no correct digit, although the residual is small.
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
        order = "row after row" if self.colours is None else _count(self.colours, "color")
        times = ", ".join(f"{name} {time_s:.3g} s" for name, time_s in self.times.items())
        lines = [
            f"{verdict}: n = {self.n}, {self.nnz} entries{sides}, {_count(self.iterations, 'iteration')} "
            f"in {_count(self.cycles, 'cycle')}",
            f"  residual        {self.residual:.2e} (requested: {self.tol:.0e})",
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
