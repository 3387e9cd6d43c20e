"""Define the errors that mxpeak raises, the exit codes, and the outcomes of a solve.

    MxpeakError                 exit code
    ├── UsageError              2   invalid or impossible request; also a ValueError
    │   └── UnknownTypeError    2   unsupported type of numbers; also a TypeError
    ├── ResourceError           5   too little memory, or no such device
    ├── StoppedError            6   the guard stopped the run
    └── SingularError           3   the matrix has no inverse

mxpeak raises errors of the user on every rank, before any communication. Numerical outcomes of a run, such as a failed
residual or a singular matrix, are values of `Outcome` in its result.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """The exit code of the process, the same on every rank.

    Attributes
    ----------
    VALID : int
        0: the result is valid.
    BUG : int
        1: a bug in mxpeak.
    USAGE : int
        2: wrong usage or an impossible configuration.
    FAILED : int
        3: the validation failed.
    BELOW_TARGET : int
        4: the result is valid, but below the requested rate or share.
    RESOURCE : int
        5: too little memory or disk, or no such device.
    GUARD : int
        6: the guard stopped the run.
    """

    VALID = 0
    BUG = 1
    USAGE = 2
    FAILED = 3
    BELOW_TARGET = 4
    RESOURCE = 5
    GUARD = 6


class MxpeakError(Exception):
    """Base class of all errors that mxpeak raises on purpose.

    Attributes
    ----------
    exit_code : ExitCode
        Exit code of the command line for this error.
    """

    exit_code: ExitCode = ExitCode.BUG


class UsageError(MxpeakError, ValueError):
    """An invalid or impossible request.

    The message states the problem, the arithmetic, and the correct usage. The error is also a ValueError.
    """

    exit_code = ExitCode.USAGE


class UnknownTypeError(UsageError, TypeError):
    """Numbers of an unsupported type, or values that are not numbers.

    The error is also a TypeError.
    """


class ResourceError(MxpeakError):
    """Too little memory, or a missing device.

    mxpeak raises this error before it allocates memory.
    """

    exit_code = ExitCode.RESOURCE


class StoppedError(MxpeakError):
    """A computation that the guard stopped, on all ranks at the same step."""

    exit_code = ExitCode.GUARD


class SingularError(MxpeakError):
    """An exactly singular matrix in a solve."""

    exit_code = ExitCode.FAILED


class Outcome(StrEnum):
    """How a solve ended.

    Each value is the text that mxpeak prints.

    Attributes
    ----------
    SOLVED : str
        The solve reached the accuracy.
    SINGULAR : str
        A column has no pivot other than zero.
    NOT_FINITE : str
        The result contains NaN or Inf.
    ZERO_PIVOT : str
        A pivot is zero in an LU factorization without pivoting.
    UNPROVEN : str
        The solution is accurate, but the factors are not those of the matrix.
    NOT_CONVERGED : str
        Refinement did not reach the accuracy.
    UNREACHED : str
        GMRES did not reach the tolerance.
    INACCURATE : str
        The residual is above the threshold.
    """

    SOLVED = "solved"
    SINGULAR = (
        "the matrix is singular to working precision: a whole column of candidates for the pivot is zero; "
        "check the matrix, or regularize it"
    )
    NOT_FINITE = (
        "the result is not finite: the input holds NaN or Inf, or the elimination overflowed; "
        "check the input, and the hardware if the input is clean"
    )
    ZERO_PIVOT = (
        "a pivot is zero: this matrix has no LU factorization without pivoting; use a generator that needs no pivoting"
    )
    UNPROVEN = (
        "the solution is accurate, but the factors are not an LU of the matrix: a step computed wrongly, and "
        "refinement corrected it; test the memory, the processor or device, and its libraries (if the bound of the "
        "proof is 1 or more, the precision is too coarse to prove an LU of this matrix)"
    )
    NOT_CONVERGED = (
        "refinement did not reach the requested accuracy in the allowed steps: the factors are too coarse for this "
        "matrix; try a wider precision, or a better conditioned matrix"
    )
    UNREACHED = (
        "GMRES did not reach the tolerance; x is the best that it found. Raise maxiter and restart, try another "
        "preconditioner (amg, or a factorization such as scipy.sparse.linalg.spilu), or solve directly with "
        "scipy.sparse.linalg.spsolve"
    )
    INACCURATE = (
        "the residual is above the threshold: some arithmetic was wrong; "
        "try --threads 1 or another BLAS, and test the memory"
    )
