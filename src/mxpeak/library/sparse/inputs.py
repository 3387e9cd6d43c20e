"""Validate the arguments of `gmres`: options, a square sparse A, and a finite b with as many rows as A.

If ranks share a system, each rank passes some rows of A and the same rows of b.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.distributed.spaces import vector_type
from mxpeak.errors import UsageError
from mxpeak.kernels.contract import SparseKernels
from mxpeak.library.inputs import Input, check_finite, read
from mxpeak.library.outcomes import SingularMatrixError
from mxpeak.library.sparse.frameworks import is_sparse, on_host
from mxpeak.runtime.calls import outside_turn
from mxpeak.solvers.gmres_driver import GmresOptions
from mxpeak.solvers.precond.formats import PRECISION_NAMES
from mxpeak.solvers.precond.sweeps import kind_of

STORAGES = ("auto", "rows", "ell", "sell", "packed")
SMOOTHERS = ("auto", "coloured", "natural")
#: Largest number of rows for 32-bit column indices and some padding.
MAX_ROWS = 2**31 - 1024


def checked_options(options: GmresOptions) -> GmresOptions:
    """Return the options; raise a UsageError if one of them is invalid."""
    for name, choices in (("precision", PRECISION_NAMES), ("storage", STORAGES), ("smoother", SMOOTHERS)):
        if (value := getattr(options, name)) not in choices:
            raise UsageError(f"unknown {name} {value!r}; use one of {', '.join(choices)}")
    for name, count in (("restart", 1 if options.restart is None else options.restart), ("maxiter", options.maxiter)):
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise UsageError(f"{name}={count!r} is not valid; use an integer of at least 1")
    for name, tolerance in (("rtol", options.rtol), ("atol", options.atol)):
        if not isinstance(tolerance, Real) or isinstance(tolerance, bool) or not tolerance >= 0.0:
            what = "||b - A x|| / ||b||" if name == "rtol" else "||b - A x||"
            raise UsageError(
                f"{name}={tolerance!r} is not valid; use a number of at least 0, the largest {what} to accept"
            )
    if options.callback is not None and not callable(options.callback):
        raise UsageError(f"callback={options.callback!r} is not a function; use a function of one argument, or None")
    return options


def outside_turns(options: GmresOptions) -> GmresOptions:
    """Return the options with functions that may call the library in other threads and wait for them."""
    preconditioner, callback = (
        partial(outside_turn, value) if callable(value) else value
        for value in (options.preconditioner, options.callback)
    )
    return replace(options, preconditioner=preconditioner, callback=callback)


def matrix(values: Any) -> Csr:
    """Return A in fp64 CSR format, with ascending columns and no duplicates. Copy A only if necessary.

    Raises an error if A is not square and finite, or has a zero row or column.
    """
    A = rows(values, square=True)
    check_entries(A)
    return A


def rows(values: Any, *, square: bool = False) -> Csr:
    """Return A, or a rank's rows of A, in fp64 CSR format with ascending columns and no duplicates.

    Raises a UsageError if the entries or, if `square`, the shape are invalid.
    """
    if not is_sparse(values):
        raise UsageError(
            f"A is {type(values).__name__}, not a SciPy sparse matrix; use scipy.sparse.csr_array(A), or "
            "mxpeak.solve(A, b) for a dense matrix"
        )
    _check_shape(values, square)
    _check_type(values.dtype, "A")
    try:
        fp64 = np.complex128 if is_complex(values) else np.float64
        A = on_host(values).astype(fp64, copy=False).tocsr()
        A = sparse.csr_array((A.data, A.indices, A.indptr), shape=A.shape)  # the user's object does not change
        A.check_format(full_check=True)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(
            f"A is not a valid sparse matrix: {error}; use scipy.sparse.coo_array to build it from its entries"
        ) from None
    if not A.has_canonical_format:
        A = A.copy()
        A.sum_duplicates()
    # Numba distinguishes writable arrays from others, and the kernels are compiled for writable ones.
    A.data, A.indices, A.indptr = (
        np.require(part, requirements=["C", "A", "W"]) for part in (A.data, A.indices, A.indptr)
    )
    _check_finite(A)
    return A


def _check_shape(A: Any, square: bool) -> None:
    if not square and len(A.shape) != 2:
        raise UsageError(f"A has shape {tuple(A.shape)}; pass this rank's m rows of A as an array of shape (m, n)")
    if square and (len(A.shape) != 2 or A.shape[0] != A.shape[1]):
        raise UsageError(
            f'A has shape {tuple(A.shape)}, but the solver needs a square matrix; use comm="world" if each rank '
            "has some of the rows, or scipy.sparse.linalg.lsqr for least squares"
        )
    if A.shape[0] > MAX_ROWS:
        raise UsageError(
            f"A has {A.shape[0]} rows, but 32-bit column indices support at most {MAX_ROWS}; use a smaller matrix"
        )


def _check_type(dtype: Any, name: str) -> None:
    widest = {"real": 8, "complex": 16}
    if dtype.itemsize > widest.get(kind_of(dtype), 0):
        how = "astype(float)" if isinstance(dtype, np.dtype) else "double()"
        raise UsageError(
            f"{name} has dtype {dtype}, but sparse solvers support only float16 to float64, complex64, complex128 and "
            f"integers; use, for example, {name}.{how}"
        )


def _check_finite(A: Csr) -> None:
    finite = np.isfinite(A.data)
    if finite.all():
        return
    k = int(np.argmin(finite))
    i, j = row_of(A, k), int(A.indices[k])
    raise UsageError(
        f"A[{i}, {j}] is {A.data[k]}: {A.nnz - int(finite.sum())} of {A.nnz} entries of A are not finite; use "
        "only finite entries"
    )


def check_entries(A: Csr, group: RankGroup = SERIAL) -> None:
    """Raise a SingularMatrixError if a row or a column contains only zeros. Collective."""
    if group.all(A.diagonal().all()):
        return
    n, nonzero = A.shape[0], A.data != 0
    columns = np.zeros(A.shape[1], bool)
    columns[A.indices[nonzero]] = True
    columns = group.combined(columns, np.logical_or)[:n]
    counts = np.concatenate([[0], np.cumsum(nonzero)])
    rows = counts[A.indptr[1:]] > counts[A.indptr[:-1]]

    def check() -> None:
        for name, full in (("row", rows), ("column", columns)):
            if not full.all():
                raise SingularMatrixError(
                    f"A is singular, because {name} {group.first + int(np.argmin(full))} contains only "
                    f"zeros (one of {n - int(full.sum())} such {name}s); check how A was built"
                )

    group.collectively(check)


def row_of(A: Csr, k: int) -> int:
    """Return the row of the entry at position k of the CSR arrays."""
    return int(np.searchsorted(A.indptr, k, side="right")) - 1


def is_complex(values: Any) -> bool:
    """Return whether a matrix or a tensor has complex numbers."""
    return is_sparse(values) and kind_of(values.dtype) == "complex"


def vectors(values: Any, name: str, n: int, *, part: bool = False) -> Input:
    """Wrap a vector (n,) or k vectors (n, k) as an `Input`; raise a UsageError for another shape.

    `part` is True for the rows of one rank.
    """
    X = read(values, name)
    if len(X.shape) not in (1, 2):
        raise UsageError(f"{name} has shape {X.shape}; use shape (n,) for one vector, or (n, k) for k vectors")
    if X.shape[0] != n:
        here = f"this rank has {n} rows of A" if part else f"A is {n}x{n}"
        raise UsageError(f"{here}, but {name} has shape {X.shape}; use {n} rows")
    return X


def on_kernels(X: Input, kernels: SparseKernels) -> Any:
    """Convert vectors to fp64 in the memory of the kernels; raise a UsageError if they are not finite.

    Complex vectors become complex128, even if the kernels are real.
    """
    on_device = X.on(kernels.device, np.dtype(np.complex128 if X.dtype.kind == "c" else np.float64))
    check_finite(on_device, X.name, kernels.xp)
    return on_device


def start(values: Any, b: Input, kernels: SparseKernels, *, part: bool = False) -> Any:
    """Return the initial guess x0, or zeros if it is None; raise a UsageError if x0 and b have different shapes."""
    if values is None:
        return kernels.xp.zeros(b.shape, dtype=vector_type(kernels, "fp64"))
    x0 = vectors(values, "x0", b.shape[0], part=part)
    if x0.shape != b.shape:
        raise UsageError(f"x0 has shape {x0.shape}, but b has shape {b.shape}; use the same shape for both")
    return on_kernels(x0, kernels)
