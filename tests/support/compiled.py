"""Compile the host's kernels before the tests start:  python -m tests.support.compiled

Otherwise each worker that calls a new kernel at the same time compiles it, and ranks spin while one of them compiles.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import scipy.sparse

import mxpeak as mx
from mxpeak.kernels.host.dense import small_cholesky, small_lu, stacked_lu
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.host.lu import operands, solves, substitution
from mxpeak.kernels.host.lu.emulation import by_sgemm, by_tiles
from mxpeak.kernels.host.lu.row_sums import add_rounded_sums, add_stored_sums
from mxpeak.perf.host import one_core_each
from mxpeak.runtime import compile as first_uses


def norms(*types: Any) -> None:
    """Compile norms for some types, also with exact sums."""
    for dtype in types:
        A = np.ones((8, 8), dtype)
        for deterministic in (False, True):
            mx.norms(A, structure="hermitian", deterministic=deterministic)
        for kind in ("max", "one", "inf", "fro"):
            mx.norm(A, kind)


def sparse() -> None:
    """Compile products, sweeps and bases for every format."""
    A = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    for precision in ("mixed", "fp64", "fp32", "bf16", "fp16"):
        mx.gmres(A, np.ones(64), precision=precision, preconditioner="gs")


def sparse_by_rows() -> None:
    """Compile sweeps that process one row at a time."""
    A = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    for precision in ("mixed", "fp64", "fp32"):
        mx.gmres(A, np.ones(64), precision=precision, preconditioner="sgs", smoother="natural")


def sparse_complex() -> None:
    """Compile products, sweeps and factors for complex matrices."""
    A = scipy.sparse.diags_array([-1.0, 4.0 + 1j, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    for precision, name in ((p, n) for p in ("mixed", "fp64") for n in ("gs", "sgs", "jacobi", "lu")):
        mx.gmres(A, np.ones(64), precision=precision, preconditioner=name)


def eliminations(*types: Any) -> None:
    """Compile LU and Cholesky solves of systems of moderate order for some types."""
    for dtype in types:
        small_lu.solver(np.dtype(dtype))
        small_cholesky.solver(np.dtype(dtype))


def stacks(*types: Any) -> None:
    """Compile solves of stacks of small systems for some types."""
    for dtype in types:
        stacked_lu.solver(np.dtype(dtype))


def units() -> None:
    """Compile the kernels that only some processors use but tests call on all of them."""
    for entry in (*solves.ENTRIES, *substitution.ENTRIES, *operands.BY_ENGINES, add_rounded_sums, add_stored_sums):
        entry.compiled()


def emulated() -> None:
    """Compile products of fp64 matrices by residues."""
    for entry in (*by_sgemm.BY_SGEMM, *by_tiles.BY_TILES):
        entry.compiled()


#: Distributed cyclically to one process per core; two processes take about the same time. Similar kernels are in one
#: part, because each process compiles shared functions once and loads Numba once.
PARTS: dict[str, Callable[[], None]] = {
    "sparse by rows": sparse_by_rows,
    "norms": partial(norms, np.complex128, np.complex64, np.float64, np.float32, np.float16, ml_dtypes.bfloat16),
    "sparse": sparse,
    "complex": sparse_complex,
    "eliminations": partial(eliminations, np.complex128, np.complex64, np.float64, np.float32),
    "stacks": partial(stacks, np.float64, np.float32),
    "products of 16-bit operands": units,
    "emulated fp64": emulated,
}


def main(*names: str) -> int:
    """Compile the named parts in this process; without names, compile first the shared part, then all on all cores."""
    HostKernels(1)
    if names:
        first_uses.MAX_PROCESSES = 1  # the other cores compile the other parts
        for name in names:
            PARTS[name]()
        return 0
    every, cores = list(PARTS), min(len(one_core_each()), len(PARTS))
    shares = [every[first::cores] for first in range(cores)]
    started = [subprocess.Popen([sys.executable, "-m", __spec__.name, *share]) for share in shares]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
