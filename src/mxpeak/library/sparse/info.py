"""Diagnostics that `gmres` returns with x."""

from __future__ import annotations

from dataclasses import dataclass, field

from mxpeak.errors import Outcome
from mxpeak.library.outcomes import SCALED_BY_ONE_FACTOR, Info
from mxpeak.precision import PRECISIONS

#: The kinds of operators, which are also the values of `info.storage`.
FUNCTION, LINEAR_OPERATOR, DISTRIBUTED_MATRIX = "function", "linear operator", "distributed matrix"


@dataclass(frozen=True, slots=True)
class GmresInfo(Info):
    """Diagnostics for the solution of a sparse system.

    Use `info.converged` in conditions, because an info object has no truth value.

    Attributes
    ----------
    outcome : Outcome
        Outcome of the solve.
    converged : bool
        Whether the solve reached the tolerance for every right-hand side.
    n : int
        Order of the complete matrix across all ranks.
    nnz : int
        Number of stored entries of the complete matrix across all ranks, or 0 for a function or a LinearOperator.
    rhs : int
        Number of right-hand sides.
    tol : float
        Requested relative residual, max(rtol, atol / ||b||). For several right-hand sides, `tol` is the largest of
        these values.
    residual : float
        Relative residual ||b - A x|| / ||b|| of the returned x, computed in fp64 for the worst right-hand side. Its
        rounding error is about u·|| |A||x| + |b| || / ||b||. It is at most that of x0, unless x underflows, or
        `message` states that x solves all rows.
    iterations : int
        Largest number of iterations for any right-hand side, over all of its cycles. If only b is complex, its real and
        imaginary parts are solved one after the other, and `iterations` is the larger of both numbers.
    cycles : int
        Number of restart cycles for the right-hand side with the most iterations.
    values : str
        Format of the matrix values in the inner iteration, at the end of the solve.
    vectors : str
        Format of the vectors in the inner iteration, at the end of the solve.
    preconditioner : str
        Name of the preconditioner that `gmres` used.
    lagged : bool
        Whether the preconditioner is that of an earlier matrix (`Solver.update`). Sweeps always use the current matrix.
    reason : str
        Reason for the choice of the preconditioner.
    levels : int
        Number of multigrid levels, or 1 if `gmres` did not use multigrid.
    storage : str
        Storage format of the matrix, or the kind of an operator: "function", "linear operator" or "distributed matrix".
    colours : int or None
        Number of colors on the rank that has the most colors. A sweep updates all rows of the same color together. The
        value is 1 if the preconditioner has no sweeps, and None if a sweep updates the rows individually.
    scaled : bool
        Whether mxpeak scaled the rows and columns of A by powers of two, or an operator by one power of two.
    fallback : bool
        Whether convergence stalled in low precision, so that `gmres` continued in fp64.
    message : str
        Notes and advice, one per line, or an empty string.
    bytes : int
        Memory in bytes for the matrix, the preconditioner and the basis, on the rank that needs the most memory.
    device : str
        Device that solved the system, such as "cpu" or "cuda:0".
    ranks : int
        Number of ranks that shared the system.
    setup_s : float
        Time in seconds that this rank spent before the first iteration.
    times : dict of str to float
        Time in seconds that this rank spent in each phase.
    history : tuple of float
        Relative residuals of the right-hand side with the most iterations, at the start and after each cycle. If mxpeak
        scaled A, these are the residuals of the scaled system.
    condition : float or None
        Estimated one-norm condition number of A, after any scaling. The value is None if there are no complete LU
        factors, or if the factors indicate a small condition number.
    ill_conditioned : bool
        Whether A is singular to working precision. If so, x may have no correct digits despite a small residual.
    """

    outcome: Outcome
    n: int
    nnz: int
    rhs: int
    tol: float
    residual: float = 0.0
    iterations: int = 0
    cycles: int = 0
    values: str = "fp64"
    vectors: str = "fp64"
    preconditioner: str = "none"
    reason: str = ""
    levels: int = 1
    storage: str = "none"
    colours: int | None = None
    scaled: bool = False
    fallback: bool = False
    message: str = ""
    bytes: int = 0
    device: str = "cpu"
    ranks: int = 1
    setup_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict, repr=False)
    history: tuple[float, ...] = field(default=(), repr=False)
    condition: float | None = None
    ill_conditioned: bool = False
    lagged: bool = False

    def __str__(self) -> str:
        verdict = "converged" if self.converged else "NOT CONVERGED"
        if self.converged and self.ill_conditioned:
            verdict += ", but numerically singular"
        sides = "" if self.rhs == 1 else f", {self.rhs} right-hand sides"
        levels = f", {self.levels} levels" if self.levels > 1 else ""
        where = "" if self.device == "cpu" else f" on {self.device}"
        where += "" if self.ranks == 1 else f" on the largest of {self.ranks} ranks"
        order = "row after row" if self.colours is None else _count(self.colours, "color")
        entries = f"{self.nnz} entries" if self.nnz or not self.n else f"a {self.storage}"
        times = "; ".join(filter(None, (f"set-up {self.setup_s:.3g} s", self._times_as_text())))
        lines = [
            f"{verdict}: n = {self.n}, {entries}{sides}, {'at most ' * (self.rhs > 1)}"
            f"{_count(self.iterations, 'iteration')}{self._cycles_as_text()}",
            f"  residual        {self.residual:.2e} (requested: {self.tol:.0e})",
            f"  precision       values {self.values}, vectors {self.vectors}, residuals fp64",
            f"  preconditioner  {self.preconditioner}{levels}{' of an earlier matrix' * self.lagged} ({self.reason})",
            f"  storage         {self.storage}, {order}, {self.bytes / 2**20:.3g} MiB{where}",
            f"  time            {times}",
        ]
        if self.condition is not None:
            lines.insert(2, f"  condition       {self.condition:.2e} (estimate)")
        return self._as_text(lines)

    def _scaling_as_text(self) -> str:
        """Return the text that A was scaled; an operator has no rows and columns that could be scaled individually."""
        by_one_factor = self.storage in (FUNCTION, LINEAR_OPERATOR, DISTRIBUTED_MATRIX)
        return SCALED_BY_ONE_FACTOR if by_one_factor else Info._scaling_as_text(self)

    def _cycles_as_text(self) -> str:
        """Return the number of cycles for the first line."""
        return f" in {_count(self.cycles, 'cycle')}"


@dataclass(frozen=True, slots=True)
class KrylovInfo(GmresInfo):
    """Diagnostics of `cg`, `minres` and `bicgstab`: those of `gmres`, and the check of the recurrence.

    For these methods, `cycles` is the number of runs of the recurrence. A run ends if the recurrence claims to have
    reached the tolerance, or breaks down. If b - A x is still too large, the next run starts from x. `iterations` is
    the total over all runs. `history` contains the relative residuals at the start and after each iteration. They are
    the residuals of the recurrence. Only those at the start and at the end of a run are computed from b - A x.

    Attributes
    ----------
    method : str
        Name of the method: "cg", "minres" or "bicgstab".
    claimed : float
        Relative residual that the recurrence had at its end, the largest over all right-hand sides. `residual` is
        computed from x, and may be larger because of rounding, or smaller if `bicgstab` returns an earlier x. If mxpeak
        scaled A, `claimed` is a residual of the scaled system.
    """

    method: str = "cg"
    claimed: float = 0.0

    def __str__(self) -> str:
        first, residual, *lines = GmresInfo.__str__(self).splitlines()
        return "\n".join([f"{self.method} {first}", f"{residual}, by the recurrence: {self.claimed:.2e}", *lines])

    def _cycles_as_text(self) -> str:
        """Return the number of runs if there are several."""
        return f" in {self.cycles} runs, each from the last x" if self.cycles > 1 else ""


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def ill_conditioned_note(condition: float, *, solved: bool) -> str:
    """Return the text of the warning that A is numerically singular, so that x may have no correct digit."""
    small = "the residual is small, but " if solved else ""
    return (
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / PRECISIONS['fp64'].u:.1e}; "
        f"{small}x may have no correct digit; check A for linearly dependent rows or columns, or use "
        "regularization or least squares (scipy.sparse.linalg.lsqr)"
    )
