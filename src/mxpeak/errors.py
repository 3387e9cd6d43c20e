"""Everything that can go wrong, as a tree, and everything that can come out, as a value.

    MxpeakError                 exit code
    ├── UsageError              2   a request that is malformed or cannot be met; a ValueError, too
    │   └── UnknownTypeError    2   numbers of a type that is not computed with; a TypeError, too
    ├── ResourceError           5   not enough memory, or no such device
    ├── StoppedError            6   the guard stopped the run
    └── SingularError           3   a matrix of the user's own has no inverse

Users' mistakes raise, on every rank, before any communication.  Numerical outcomes of a run (a residual that fails, a
singular matrix) are values of `Outcome`: the run ended, and its result says how.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """What the process says to the shell; the same on every rank."""

    VALID = 0
    BUG = 1
    USAGE = 2
    FAILED = 3
    BELOW_TARGET = 4
    RESOURCE = 5
    GUARD = 6


class MxpeakError(Exception):
    """Base of every error that mxpeak raises on purpose; its text is meant for the user."""

    exit_code: ExitCode = ExitCode.BUG


class UsageError(MxpeakError, ValueError):
    """A request that is malformed or cannot be met; the message shows the arithmetic and what to type instead."""

    exit_code = ExitCode.USAGE


class UnknownTypeError(UsageError, TypeError):
    """Numbers of a type that is not computed with, or no numbers at all."""


class ResourceError(MxpeakError):
    """Memory or a device that the request needs is not there; found before anything is allocated."""

    exit_code = ExitCode.RESOURCE


class StoppedError(MxpeakError):
    """The guard stopped a computation, on all ranks at the same step."""

    exit_code = ExitCode.GUARD


class SingularError(MxpeakError):
    """A matrix that was to be solved with is exactly singular."""

    exit_code = ExitCode.FAILED


class Outcome(StrEnum):
    """How a solve ended.  The values are the advice that goes to the user."""

    SOLVED = "solved"
    SINGULAR = (
        "the matrix is singular to working precision: a whole column of candidates for the pivot is zero; "
        "check the matrix, or regularise it"
    )
    NOT_FINITE = (
        "the result is not finite: the input holds NaN or Inf, or the elimination overflowed; "
        "check the input, and the hardware if the input is clean"
    )
    ZERO_PIVOT = (
        "a pivot is zero: this matrix has no LU factorization without pivoting; take a generator that needs none"
    )
    UNPROVEN = (
        "the solution is accurate, but the factors are not those of an LU of the matrix: something computed wrongly, "
        "and refinement made up for it; test the memory, the processor or device, and its libraries (where the bound "
        "of the proof is 1 or more, the precision is too coarse for this matrix to prove anything)"
    )
    NOT_CONVERGED = (
        "refinement did not reach the accuracy asked for in the steps allowed: the factors are too coarse for this "
        "matrix; try a wider precision, or a better conditioned matrix"
    )
    UNREACHED = (
        "GMRES did not reach the tolerance; x is the best that it found. Raise maxiter and restart, try another "
        "preconditioner (amg, or a factorization such as scipy.sparse.linalg.spilu), or solve directly with "
        "scipy.sparse.linalg.spsolve"
    )
    INACCURATE = (
        "the residual is above the threshold: the arithmetic went wrong somewhere; "
        "try --threads 1 or another BLAS, and test the memory"
    )
