"""Call ScaLAPACK's norms of general matrices through ctypes, on a BLACS grid of the ranks of a run.

ScaLAPACK must use the MPI library of the ranks, because a second MPI in the same process does not receive their
messages and usually crashes. Therefore, the names of the MPI libraries that a file needs are read before it is loaded.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.errors import ResourceError
from mxpeak.layout.grid import ProcessGrid

#: The letter of each data type in the names of routines, and the C type of a norm.
LETTERS = {
    "float64": ("d", ctypes.c_double),
    "float32": ("s", ctypes.c_float),
    "complex128": ("z", ctypes.c_double),
    "complex64": ("c", ctypes.c_float),
}
#: The first argument of P?LANGE for each kind of norm.
NORMS = {"max": b"M", "one": b"1", "inf": b"I", "fro": b"F"}
#: Folders of libraries of Debian, Fedora and others.
FOLDERS = (
    f"/usr/lib/{platform.machine()}-linux-gnu",
    *("/usr/lib64", "/usr/lib64/openmpi/lib", "/usr/lib64/mpich/lib", "/usr/lib", "/usr/local/lib"),
)
PATTERN = "libscalapack*.so*"
INSTALL = "for example apt-get install libscalapack-openmpi-dev, or libscalapack-mpich-dev for MPICH"
#: The name of an MPI library in the list of libraries that a shared library needs.
_MPI_NAME = re.compile(rb"\0(lib(?:mpi|mpich|mpi_[a-z]+)\.so(?:\.\d+)*)\0")


def open_scalapack(where: str, comm: Communicator) -> ScaLapack:
    """Load the ScaLAPACK at a path, or with "auto" the first one that uses the MPI library of the ranks. Collective.

    Raise a ResourceError with the reason on all ranks if it cannot be used on some rank.
    """
    opened, reason = None, ""
    try:
        opened = ScaLapack(_usable(where, under_mpi=comm.name == "mpi"))
    except ResourceError as error:
        reason = str(error)
    reasons = comm.bcast_object(list(filter(None, comm.gather_objects(reason) or [])))
    if opened is None or reasons:
        raise ResourceError(reasons[0])
    return opened


def _usable(where: str, *, under_mpi: bool) -> Path:
    """Return the path of a ScaLAPACK library that this process can use; raise a ResourceError with the reason."""
    paths = list(_installed()) if where == "auto" else [Path(where).absolute()]
    if not paths:
        raise ResourceError(f"ScaLAPACK is not installed ({INSTALL})")
    reasons = [_misfit(path, under_mpi=under_mpi) for path in paths]
    for path, reason in zip(paths, reasons):
        if not reason:
            return path
    raise ResourceError(reasons[0])


def _installed() -> Iterator[Path]:
    """Yield the ScaLAPACK libraries of LD_LIBRARY_PATH and of the usual folders, each file once."""
    seen = set[Path]()
    for folder in (*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *FOLDERS):
        for path in sorted(Path(folder).glob(PATTERN)):
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def _misfit(path: Path, *, under_mpi: bool) -> str:
    """Return the reason why this process cannot use a library, or "".

    A process without MPI can use any library, which starts its own MPI.
    """
    try:
        needed = {name.decode() for name in _MPI_NAME.findall(path.read_bytes())}
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not under_mpi and "mpi4py.MPI" not in sys.modules:
        return ""
    others = sorted(name for name in needed if not _is_loaded(name))
    if not others:
        return ""
    from mxpeak.comm.transports.mpi import libraries

    own = ", ".join(sorted(libraries())) or "another MPI"
    return f"{path} was built for {' and '.join(others)}, but the ranks use {own}; use the ScaLAPACK of this MPI"


def _is_loaded(name: str) -> bool:
    """Return whether the library that the loader finds by this name is already part of the process."""
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


class ScaLapack:
    """The norms of a ScaLAPACK library with 32-bit integers, for matrices that are stored by columns."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL | os.RTLD_LAZY)
            self._routines = {name: self._library[f"p{letter}lange_"] for name, (letter, _) in LETTERS.items()}
            self._get, self._map = self._library["blacs_get_"], self._library["blacs_gridmap_"]
        except (OSError, AttributeError) as error:
            raise ResourceError(f"{path} cannot be used as ScaLAPACK: {error}") from None
        for name, (_, number) in LETTERS.items():
            self._routines[name].restype = number

    def context(self, grid: ProcessGrid) -> int:
        """Return a BLACS context in which the ranks have their coordinates of the grid. Collective over all ranks."""
        handle, ranks = ctypes.c_int(), (ctypes.c_int * (grid.P * grid.Q))()
        for rank in range(grid.P * grid.Q):
            p, q = grid.coords(rank)
            ranks[p + q * grid.P] = rank
        self._get(*_integers(-1, 0), ctypes.byref(handle))
        self._map(ctypes.byref(handle), ranks, *_integers(grid.P, grid.P, grid.Q))
        return handle.value

    def norm(self, kind: str, dtype: str, A: Any, shape: tuple[int, int], nb: int, context: int) -> float:
        """Return a norm of a matrix of this shape, of which A is this rank's part, stored by columns. Collective."""
        (rows, cols), (m, n), number = A.shape, shape, LETTERS[dtype][1]
        leading = max(1, A.strides[1] // A.itemsize if cols > 1 else rows)
        descriptor = (ctypes.c_int * 9)(1, context, m, n, nb, nb, 0, 0, leading)
        work = (number * max(1, rows, cols))()
        sizes, first = _integers(m, n), _integers(1, 1)
        data = ctypes.c_void_p(A.ctypes.data)
        return float(self._routines[dtype](NORMS[kind], *sizes, data, *first, descriptor, work, ctypes.c_size_t(1)))


def _integers(*values: int) -> list[Any]:
    """Return references to integers, because Fortran passes arguments by reference."""
    return [ctypes.byref(ctypes.c_int(value)) for value in values]
