"""Sources of the entries of a distributed matrix: a function, a file, or the memory of the ranks.

Each rank requests rows of its own part. If reading the rows fails, the source records the error and returns NaN. The
other ranks continue to compute, and all ranks raise the error together afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.errors import MxpeakError, UsageError
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import block_cyclic
from mxpeak.library.dense.inputs import lies_well
from mxpeak.library.types import Array

#: The library that reads a file, by the suffix of the file; NumPy reads all other files.
LIBRARIES = {".h5": "h5py", ".hdf5": "h5py", ".zarr": "zarr"}
#: Maximum number of datasets that an error lists.
LISTED = 12


class Source:
    """Source that computes or reads the entries of a matrix on demand.

    dtype      data type of the returned entries: float64 or complex128
    holds      whether every rank stores its part of A in memory
    held       size of the stored part on this rank, in bytes
    lower      whether only the lower triangle is read, or only the upper one; None if all entries are read
    hermitian  whether imaginary parts of the diagonal are zero if only one triangle is read
    """

    holds, held = False, 0
    lower: bool | None = None
    hermitian = True

    def __init__(self, what: str, dtype: np.dtype[Any]):
        self.what, self.dtype = what, dtype
        self._mistake: MxpeakError | None = None

    def __call__(self, rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Array:
        """Return this rank's rows with the local indices `local` in `dtype`.

        If an error occurs, record it and return NaN.
        """
        i, j = owned(rows)[local], owned(cols)
        if not (len(i) and len(j)):
            return np.empty((len(i), len(j)), self.dtype)
        try:
            return self.checked_entries(i, j)
        except MxpeakError as error:
            self._mistake = self._mistake or error
        except Exception as error:
            self._mistake = self._mistake or UsageError(f"{self.what} raised {type(error).__name__}: {error}")
        return np.full((len(i), len(j)), np.nan, self.dtype)

    def triangle(self, *, lower: bool, hermitian: bool = True) -> Source:
        """Return a source that reads one triangle of the same matrix; the other one may contain anything.

        If the matrix is Hermitian, the imaginary parts of the diagonal are returned as zero.
        """
        half = copy(self)
        half.lower, half.hermitian, half._mistake = lower, hermitian, None
        return half

    def checked_entries(self, i: Array, j: Array) -> Array:
        """Return the entries a_ij in `dtype`; raise a UsageError if an entry that is read is not finite."""
        return self._checked(self._entries(i, j), i, j)

    def mistake(self) -> MxpeakError | None:
        """Return and clear the first error since the previous call, or return None if no error occurred."""
        mistake, self._mistake = self._mistake, None
        return mistake

    def _entries(self, i: Array, j: Array) -> Any:
        """Return the entries a_ij with the global row indices i and column indices j."""
        raise NotImplementedError

    def _checked(self, values: Any, i: Array, j: Array) -> Array:
        A = np.asarray(values)
        if not np.can_cast(wide_type(A.dtype, self.what), self.dtype):
            raise UsageError(
                f"{self.what} returned {A.dtype} for i = {i[0]}… and j = {j[0]}…, but real numbers for i = "
                "j = 0, which set the type of A; use complex numbers everywhere, for example with "
                "A.astype(complex)"
            )
        shape = len(i), len(j)
        if A.shape != shape:
            raise UsageError(
                f"{self.what} returned shape {A.shape} instead of {shape} for i of shape ({shape[0]}, 1) "
                f"and j of shape (1, {shape[1]}); use operations on whole arrays, for example 1.0 / (1.0 + "
                "abs(i - j))"
            )
        A = self._with_real_diagonal(np.ascontiguousarray(A, self.dtype), i, j)  # matrix products read rows
        if not np.isfinite(A).all() and (wrong := np.argwhere(~np.isfinite(A) & self._mask(i, j))).size:
            r, c = wrong[0]
            where = ""
            if self.lower is not None:
                half = "lower" if self.lower else "upper"
                where = f" in the {half} triangle, or read the other one by lower={not self.lower}"
            raise UsageError(f"A[{i[r]}, {j[c]}] is {A[r, c]}, which is not finite; use only finite entries{where}")
        return A

    def _mask(self, i: Array, j: Array) -> Any:
        """Return a mask of the entries a_ij that are read, or True if mxpeak reads all of them."""
        if self.lower is None:
            return True
        return i[:, None] >= j if self.lower else i[:, None] <= j

    def _with_real_diagonal(self, A: Array, i: Array, j: Array) -> Array:
        """Return A, or a copy with a real diagonal if only one triangle of a complex matrix is read."""
        if self.lower is None or not self.hermitian or self.dtype.kind != "c":
            return A
        _, r, c = np.intersect1d(i, j, assume_unique=True, return_indices=True)
        A = A.astype(self.dtype)
        A[r, c] = A[r, c].real
        return A


class FunctionSource(Source):
    """Source with the entries a_ij = fn(i, j), which are computed again for each use."""

    def __init__(self, fn: Callable[[Any, Any], Any]):
        """Call fn for the entry (0, 0) to determine whether the entries are complex."""
        what, first = "fn(i, j)", np.zeros((1, 1), np.int64)
        try:
            entry = np.asarray(fn(first, first))
        except Exception as error:
            raise UsageError(f"{what} raised {type(error).__name__}: {error}") from error
        super().__init__(what, wide_type(entry.dtype, what))
        self._fn = fn

    def _entries(self, i: Array, j: Array) -> Any:
        return self._fn(i[:, None], j[None, :])


class InFile(Source):
    """Source that reads the entries from a file on demand, without loading the whole file."""

    def __init__(self, path: Path, A: Any):
        super().__init__(str(path), wide_type(A.dtype, str(path)))
        self._A = A

    @classmethod
    def opened(cls, path: Path, dataset: str | None) -> InFile:
        """Open a file as a source; raise a UsageError unless it contains a nonempty square matrix."""
        A = _opened(path, dataset)
        if len(A.shape) != 2 or A.shape[0] != A.shape[1] or not A.shape[0]:
            raise UsageError(
                f"{path} contains an array of shape {A.shape}, but A must be square and not empty; use another file"
            )
        return cls(path, A)

    @property
    def n(self) -> int:
        """Return the order of the matrix."""
        return int(self._A.shape[0])

    def _entries(self, i: Array, j: Array) -> Any:
        across = _runs(j)
        strips = ([self._A[rows, columns] for columns in across] for rows in _runs(i))
        return np.concatenate([np.asarray(np.concatenate(strip, axis=1), self.dtype) for strip in strips])


def _runs(indices: Array) -> list[slice]:
    """Split ascending indices into runs of consecutive numbers, and return one slice per run."""
    pieces = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return [slice(int(run[0]), int(run[-1]) + 1) for run in pieces]


class InMemory(Source):
    """Source that stores this rank's part in the block-cyclic layout. All entries are known to be finite.

    The part can be the user's own array. Complex parts, and fp64 parts that are contiguous by rows or by columns, are
    used without a copy. For other parts, each request copies the requested rows.
    """

    holds = True

    def __init__(self, part: Array, dtype: np.dtype[Any]):
        super().__init__("A", dtype)
        self.part, self.held = part, part.nbytes

    def __call__(self, rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Array:
        """Return this rank's rows with the local indices `local`. Copy the rows only if products cannot read them."""
        strip = self.part[local]
        if self.dtype.kind == "c":
            return self._with_real_diagonal(strip, owned(rows)[local], owned(cols))
        # Compiled products accept only writable arrays, although they do not write to this one.
        as_it_lies = strip.dtype == np.float64 and strip.flags.writeable and min(strip.shape) > 1 and lies_well(strip)
        return strip if as_it_lies else np.array(strip, np.float64, order="C")


def owned(layout: BlockCyclic) -> Array:
    """Return the global indices that a process owns in a block-cyclic layout, in ascending order."""
    indices: Array = block_cyclic(layout).to_global(np.arange(layout.local_size))
    return indices


def wide_type(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    """Return float64 or complex128, the type in which a system is solved; raise a UsageError for non-numeric types."""
    if dtype.kind not in "biufc":
        raise UsageError(
            f"{what} has dtype {dtype}, but distributed systems need a real, complex or integer NumPy type; "
            "use, for example, A.astype(float)"
        )
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def _opened(path: Path, dataset: str | None) -> Any:
    """Open a file and return an array object that reads only the requested entries.

    Raises a UsageError if the file cannot be opened.
    """
    library = LIBRARIES.get(path.suffix.lower())
    if library is None:
        return _memory_mapped(path, dataset)
    if not path.exists():
        raise UsageError(f"{path}: No such file or directory; use a path that all ranks can read")
    try:
        module = import_module(library)
    except ImportError:
        raise UsageError(
            f"mxpeak needs {library} to read {path}, but {library} is not installed; run pip install {library}"
        ) from None
    try:
        store = module.File(path, "r") if library == "h5py" else module.open(str(path), mode="r")
    except (OSError, ValueError, RuntimeError, LookupError) as error:
        raise UsageError(f"{library} cannot open {path}: {error}; use a file that {library} can open") from None
    return _dataset(path, store, dataset)


def _memory_mapped(path: Path, dataset: str | None) -> Any:
    """Return the memory-mapped array of a .npy file; raise a UsageError for a dataset name or an invalid file."""
    _check_single(path, dataset)
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path} is not a readable .npy file: {reason}; use numpy.save(path, A) to write one"
        ) from None


def _check_single(path: Path, dataset: str | None) -> None:
    """Raise a UsageError if a dataset is named although the file contains only one array."""
    if dataset is not None:
        raise UsageError(
            f"dataset={dataset!r} applies only to files with several arrays, but {path} contains one array; "
            "remove dataset"
        )


def _dataset(path: Path, store: Any, dataset: str | None) -> Any:
    """Return the dataset with this path in the store, or the only matrix; raise a UsageError if it is missing."""
    if hasattr(store, "shape"):  # a Zarr array outside a group
        _check_single(path, dataset)
        return store
    if dataset is None:
        return _only(path, _datasets(store))
    name = dataset.strip("/")
    member = store.get(name) if name and name in store else None  # None for a link without a target
    if _is_dataset(member):
        return member
    found = _datasets(store)
    if inside := [other for other in found if other.startswith(f"{name}/")]:
        raise UsageError(f"{path}: {name} is a group; use {_listed(inside, 'or')}")
    others = f"use one of {_listed(list(found))}" if found else "the file contains no datasets; use another file"
    raise UsageError(f"{path} has no dataset {dataset!r}; {others}")


def _only(path: Path, found: dict[str, Any]) -> Any:
    """Return the only matrix of a file, or of its root group; raise a UsageError if there are several or none."""
    matrices = [name for name, A in found.items() if len(A.shape) == 2 and A.dtype.kind in "biufc"]
    in_root = [name for name in matrices if "/" not in name]
    for names in (matrices, in_root, list(found)):
        if len(names) == 1:
            return found[names[0]]
    if not found:
        raise UsageError(f"{path} contains no datasets; use another file")
    raise UsageError(f"{path} contains {len(found)} datasets ({_listed(list(found))}); use dataset= to select one")


def _datasets(store: Any) -> dict[str, Any]:
    """Return the datasets of a store and of all its groups by path, such as run1/A. Visit each group once."""
    found: dict[str, Any] = {}
    visited, waiting = [store], deque([("", store)])
    while waiting:
        prefix, group = waiting.popleft()
        for name in group:
            member = group.get(name)  # None for a link without a target
            if _is_dataset(member):
                found[prefix + name] = member
            elif hasattr(member, "keys") and member not in visited:  # a link may lead back to a group
                visited.append(member)
                waiting.append((f"{prefix}{name}/", member))
    return dict(sorted(found.items()))


def _is_dataset(member: Any) -> bool:
    """Return whether a member of a store is a dataset with entries; the shape of an empty HDF5 dataset is None."""
    return getattr(member, "shape", None) is not None


def _listed(names: Sequence[str], last: str = "") -> str:
    """Return at most LISTED names, separated by commas or by the word `last`."""
    shown = (f" {last} " if last else ", ").join(names[:LISTED])
    return shown + f", and {len(names) - LISTED} more" * (len(names) > LISTED)
