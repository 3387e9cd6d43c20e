"""Where the entries of a distributed matrix come from: a function, a file, or its ranks' memory.

A rank asks for some rows of its own part.  What goes wrong there is noted, and NaN is given instead: the other ranks
compute on, and all raise together afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.errors import MxpeakError, UsageError
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import block_cyclic
from mxpeak.library.dense.inputs import lies_well
from mxpeak.library.dense.stores import opened
from mxpeak.library.dense.types import Array


class Source:
    """Entries made or read when they are asked for.

    holds   whether every rank holds its part of A
    held    how many bytes that are on this rank
    """

    holds, held = False, 0

    def __init__(self, what: str):
        self.what = what
        self._mistake: MxpeakError | None = None

    def __call__(self, rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Array:
        """These local rows, in fp64."""
        i, j = owned(rows)[local], owned(cols)
        if not (len(i) and len(j)):
            return np.empty((len(i), len(j)))
        try:
            return self._checked(self._entries(i, j), i, j)
        except MxpeakError as error:
            self._mistake = self._mistake or error
        except Exception as error:
            self._mistake = self._mistake or UsageError(f"{self.what} raised {type(error).__name__}: {error}")
        return np.full((len(i), len(j)), np.nan)

    def mistake(self) -> MxpeakError | None:
        """What went wrong since this was last asked."""
        found, self._mistake = self._mistake, None
        return found

    def _entries(self, i: Array, j: Array) -> Any:
        """a_ij of these rows and columns."""
        raise NotImplementedError

    def _checked(self, values: Any, i: Array, j: Array) -> Array:
        A = np.asarray(values)
        check_real(A.dtype, self.what)
        shape = len(i), len(j)
        if A.shape != shape:
            raise UsageError(
                f"{self.what} gave shape {A.shape} for i of shape ({shape[0]}, 1) and j of shape (1, {shape[1]}); it "
                f"must give {shape}: compute with whole arrays, for example 1.0 / (1.0 + abs(i - j))"
            )
        A = np.ascontiguousarray(A, np.float64)  # products read rows
        if not np.isfinite(A).all():
            r, c = np.argwhere(~np.isfinite(A))[0]
            raise UsageError(f"A[{i[r]}, {j[c]}] is {A[r, c]}: all entries of A must be finite")
        return A


class Made(Source):
    """a_ij = fn(i, j), made anew whenever it is needed."""

    def __init__(self, fn: Callable[[Any, Any], Any]):
        super().__init__("fn(i, j)")
        self._fn = fn

    def _entries(self, i: Array, j: Array) -> Any:
        return self._fn(i[:, None], j[None, :])


class InFile(Source):
    """a_ij of a file, which is mapped, not loaded: a rank reads what it needs when it needs it."""

    def __init__(self, path: Path, A: Any):
        super().__init__(str(path))
        self._A = A

    @classmethod
    def opened(cls, path: Path, dataset: str | None) -> InFile:
        """The square matrix of a file."""
        A = opened(path, dataset)
        check_real(A.dtype, str(path))
        if len(A.shape) != 2 or A.shape[0] != A.shape[1] or not A.shape[0]:
            raise UsageError(f"{path} holds an array of shape {A.shape}; A is square and not empty")
        return cls(path, A)

    @property
    def n(self) -> int:
        """The order of the matrix."""
        return int(self._A.shape[0])

    def _entries(self, i: Array, j: Array) -> Any:
        across = _runs(j)
        strips = ([self._A[rows, columns] for columns in across] for rows in _runs(i))
        return np.concatenate([np.asarray(np.concatenate(strip, axis=1), np.float64) for strip in strips])


def _runs(indices: Array) -> list[slice]:
    """Ascending indices as runs of consecutive ones."""
    pieces = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return [slice(int(run[0]), int(run[-1]) + 1) for run in pieces]


class Held(Source):
    """This rank's part, in blocks as they are distributed; its entries are known to be real and finite.

    It may be the user's own array.  In fp64, by rows or by columns, it is read where it lies; of others the rows that
    are asked for are copied.
    """

    holds = True

    def __init__(self, part: Array):
        super().__init__("A")
        self.part, self.held = part, part.nbytes

    def __call__(self, rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Array:
        """These local rows."""
        strip = self.part[local]
        # Compiled products take writable arrays, though they do not write to this one.
        as_it_lies = strip.dtype == np.float64 and strip.flags.writeable and min(strip.shape) > 1 and lies_well(strip)
        return strip if as_it_lies else np.array(strip, np.float64, order="C")


def owned(layout: BlockCyclic) -> Array:
    """The global indices that a process owns, ascending."""
    found: Array = block_cyclic(layout).to_global(np.arange(layout.local_size))
    return found


def check_real(dtype: np.dtype[Any], what: str) -> None:
    """Stop at numbers that are not real."""
    if dtype.kind not in "biuf":
        raise UsageError(
            f"{what} has dtype {dtype}; distributed systems are solved in fp64: real numbers and integers are taken "
            "(complex arrays on one process: mxpeak.solve(A, b))"
        )
