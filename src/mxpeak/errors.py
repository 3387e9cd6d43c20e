"""Define the errors that mxpeak raises, the exit codes, and the outcomes of a solve.

    MxpeakError                 exit code
    ├── UsageError              2   invalid or impossible request; also a ValueError
    │   └── UnknownTypeError    2   unsupported type of numbers; also a TypeError
    ├── ResourceError           5   too little memory, or no such device
    ├── StoppedError            6   the guard stopped the run
    └── SingularError           3   the matrix has no inverse

If an error is caused by the user, all ranks raise it before any communication. Numerical outcomes of a run, such as a
failed residual or a singular matrix, are values of `Outcome` in its result.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """Exit code of an mxpeak command, the same on every rank.

    Attributes
    ----------
    VALID : int
        0: the result is valid.
    BUG : int
        1: mxpeak has a bug.
    USAGE : int
        2: the usage is wrong, or the configuration is impossible.
    FAILED : int
        3: the validation failed.
    BELOW_TARGET : int
        4: the result is valid, but below the requested rate or share of the limit.
    RESOURCE : int
        5: there is not enough memory or disk space, or a device is missing.
    GUARD : int
        6: mxpeak stopped the run early, because the target was out of reach or a rank hung.
    """

    VALID = 0
    BUG = 1
    USAGE = 2
    FAILED = 3
    BELOW_TARGET = 4
    RESOURCE = 5
    GUARD = 6


def most_severe(codes: Iterable[int]) -> int:
    """Return the most severe exit code; a failed check is more severe than a slow run, for example."""
    order = (ExitCode.BUG, ExitCode.USAGE, ExitCode.FAILED, ExitCode.GUARD, ExitCode.RESOURCE, ExitCode.BELOW_TARGET)
    found = set(codes)
    return next((code for code in order if code in found), ExitCode.VALID)


class MxpeakError(Exception):
    """Base class of the public exceptions of mxpeak.

    Attributes
    ----------
    exit_code : ExitCode
        Exit code that mxpeak commands return for this error.
    """

    exit_code: ExitCode = ExitCode.BUG


class UsageError(MxpeakError, ValueError):
    """An error caused by an invalid or impossible request.

    The message states the problem, the arithmetic behind it, and the correct usage. UsageError is also a subclass of
    ValueError.
    """

    exit_code = ExitCode.USAGE


class UnknownTypeError(UsageError, TypeError):
    """An error caused by an unsupported data type or by values that are not numbers.

    UnknownTypeError is also a subclass of TypeError.
    """


class ResourceError(MxpeakError):
    """An error caused by insufficient memory or a missing device.

    mxpeak raises this error before it allocates memory.
    """

    exit_code = ExitCode.RESOURCE


#: Error numbers of a full disk, an exhausted disk quota, and a file that is too large.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cannot_write(path: object, error: OSError, instead: str) -> MxpeakError:
    """Return the error for a file that cannot be written: a ResourceError for a full disk, otherwise a UsageError."""
    kind = ResourceError if error.errno in NO_SPACE else UsageError
    return kind(f"mxpeak cannot write {path}: {error.strerror}; {instead}")


class StoppedError(MxpeakError):
    """An error that all ranks raise at the same step when mxpeak stops a run early."""

    exit_code = ExitCode.GUARD


class SingularError(MxpeakError):
    """An error caused by an exactly singular matrix."""

    exit_code = ExitCode.FAILED


class Outcome(StrEnum):
    """Outcome of a solve.

    Each value is the text that mxpeak prints for the outcome.

    Attributes
    ----------
    SOLVED : str
        The solution has the required accuracy.
    SINGULAR : str
        A column of the matrix has no nonzero pivot.
    NOT_FINITE : str
        The result contains NaN or infinity.
    ZERO_PIVOT : str
        An LU factorization without pivoting encountered a zero pivot.
    UNPROVEN : str
        The solution is accurate, but the factors are not an LU factorization of the matrix.
    NOT_CONVERGED : str
        Iterative refinement did not reach the required accuracy.
    UNREACHED : str
        The iterative solver did not reach the tolerance.
    INACCURATE : str
        The residual exceeds the threshold.
    """

    SOLVED = "solved"
    SINGULAR = (
        "the matrix is singular to working precision: a whole column of candidates for the pivot is zero; "
        "check the matrix, or regularize it"
    )
    NOT_FINITE = (
        "the result is not finite: the input contains NaN or Inf, or the elimination overflowed; check the "
        "input, and the hardware if the input is clean"
    )
    ZERO_PIVOT = (
        "a pivot is zero: this matrix has no LU factorization without pivoting; use a generator that needs no pivoting"
    )
    UNPROVEN = (
        "the solution is accurate, but the factors are not an LU of the matrix: one step was computed "
        "incorrectly, and refinement corrected the solution; test the memory, the processor or device, and "
        "its libraries (if the bound of the proof is 1 or more, the precision is too coarse to prove an LU "
        "of this matrix)"
    )
    NOT_CONVERGED = (
        "refinement did not reach the requested accuracy in the allowed steps: the factors are too coarse for this "
        "matrix; try a wider precision, or a better conditioned matrix"
    )
    UNREACHED = "the solver did not reach the tolerance; x is the best that it found"
    INACCURATE = (
        "the residual is above the threshold: some arithmetic was wrong; "
        "try --threads 1 or another BLAS, and test the memory"
    )
