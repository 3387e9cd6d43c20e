"""Compile the host's kernels before the tests begin:  python -m tests.support.compiled

Workers that meet a kernel at the same time would compile it each, and ranks spin while one of them compiles.
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
    """Norms of some types, also by sums that are exact."""
    for dtype in types:
        A = np.ones((8, 8), dtype)
        for deterministic in (False, True):
            mx.norms(A, structure="hermitian", deterministic=deterministic)
        for kind in ("max", "one", "inf", "fro"):
            mx.norm(A, kind)


def sparse() -> None:
    """Products, sweeps and bases in every format."""
    A = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    for precision in ("mixed", "fp64", "fp32", "bf16", "fp16"):
        mx.gmres(A, np.ones(64), precision=precision, preconditioner="gs")


def sparse_by_rows() -> None:
    """Sweeps row after row."""
    A = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    for precision in ("mixed", "fp64", "fp32"):
        mx.gmres(A, np.ones(64), precision=precision, preconditioner="sgs", smoother="natural")


def sparse_complex() -> None:
    """Products, sweeps and factors of complex matrices."""
    A = scipy.sparse.diags_array([-1.0, 4.0 + 1j, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    for precision, name in ((p, n) for p in ("mixed", "fp64") for n in ("gs", "sgs", "jacobi", "lu")):
        mx.gmres(A, np.ones(64), precision=precision, preconditioner=name)


def eliminations(*types: Any) -> None:
    """Systems of moderate order, of some types, by LU and by Cholesky."""
    for dtype in types:
        small_lu.solver(np.dtype(dtype))
        small_cholesky.solver(np.dtype(dtype))


def stacks(*types: Any) -> None:
    """Stacks of small systems, of some types."""
    for dtype in types:
        stacked_lu.solver(np.dtype(dtype))


def units() -> None:
    """What only some processors call, and tests everywhere."""
    for entry in (*solves.ENTRIES, *substitution.ENTRIES, *operands.BY_ENGINES, add_rounded_sums, add_stored_sums):
        entry.compiled()


def emulated() -> None:
    """Products of fp64 matrices by residues."""
    for entry in (*by_sgemm.BY_SGEMM, *by_tiles.BY_TILES):
        entry.compiled()


#: Dealt out in turn to as many processes as there are cores; on two of them each takes about as long.  What is alike
#: stays together, for what parts share each process compiles once, and what Numba needs each loads.
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
    """Compile some parts here; without names all of them, on all cores, and first what they share."""
    HostKernels(1)
    if names:
        first_uses.MAX_PROCESSES = 1  # the others are at work on the other cores
        for name in names:
            PARTS[name]()
        return 0
    every, cores = list(PARTS), min(len(one_core_each()), len(PARTS))
    shares = [every[first::cores] for first in range(cores)]
    started = [subprocess.Popen([sys.executable, "-m", __spec__.name, *share]) for share in shares]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
