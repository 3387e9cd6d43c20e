"""Systems that can be solved: A square and sparse, b with as many rows, all finite and real.

Of ranks that share a system, each hands over some rows of A, and the same rows of b.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.errors import UsageError
from mxpeak.kernels.contract import SparseKernels
from mxpeak.library.inputs import Array, Input, check_finite, is_tensor, read, sparse_on_host
from mxpeak.library.outcomes import SingularMatrixError
from mxpeak.library.sparse.rank_group import SERIAL, RankGroup

#: A scipy.sparse.csr_array of fp64.
Csr = Any

#: Rows that 32-bit columns can tell apart, less some padding.
MOST_ROWS = 2**31 - 1024


def matrix(values: Any) -> Csr:
    """A by rows in fp64, columns ascending, none twice; it shares memory with A wherever A is so already."""
    A = rows(values, square=True)
    check_entries(A)
    return A


def rows(values: Any, *, square: bool = False) -> Csr:
    """Rows of A in that form: all of them, or a rank's."""
    if not (sparse.issparse(values) or is_tensor(values)):
        raise UsageError(
            f"A is {type(values).__name__}, not a SciPy sparse matrix; use scipy.sparse.csr_array(A), or "
            "mxpeak.solve(A, b) for a dense matrix"
        )
    _check_shape(values, square)
    _check_type(values.dtype, "A")
    try:
        A = sparse_on_host(values).astype(np.float64, copy=False).tocsr()
        A = sparse.csr_array((A.data, A.indices, A.indptr), shape=A.shape)  # the user's object stays as it was
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
    # Compiled code knows two types of arrays, those that may be written and others, and is compiled for the former.
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
            f'A has shape {tuple(A.shape)}, but gmres needs a square matrix; use comm="world" if each rank '
            "has some of the rows, or scipy.sparse.linalg.lsqr for least squares"
        )
    if A.shape[0] > MOST_ROWS:
        raise UsageError(
            f"A has {A.shape[0]} rows, but 32-bit column indices support at most {MOST_ROWS}; use a smaller matrix"
        )


def _check_type(dtype: Any, name: str) -> None:
    kind = kind_of(dtype)
    if kind == "complex":
        raise UsageError(
            f"{name} is complex ({dtype}), but gmres supports only real numbers; use the real matrix [[Re "
            "A, -Im A], [Im A, Re A]], or use scipy.sparse.linalg.gmres"
        )
    if kind != "real" or dtype.itemsize > 8:
        how = "astype(float)" if isinstance(dtype, np.dtype) else "double()"
        raise UsageError(
            f"{name} has dtype {dtype}, but gmres supports only float16 to float64 and integers; use, for "
            f"example, {name}.{how}"
        )


def kind_of(dtype: Any) -> str:
    """`real` or `complex` of numbers that can be computed with, be the type NumPy's or torch's; else nothing."""
    if isinstance(dtype, np.dtype):
        return "complex" if dtype.kind == "c" else "real" if dtype.kind in "biuf" else ""
    if dtype.is_complex:
        return "complex"
    whole = str(dtype).startswith(("torch.bool", "torch.int", "torch.uint"))
    return "real" if whole or (dtype.is_floating_point and dtype.itemsize > 1) else ""


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


def check_entries(A: Csr, everybody: RankGroup = SERIAL) -> None:
    """Stop where a row or a column has nothing but zeros; none has if the diagonal is full.  Collective."""
    if everybody.all(A.diagonal().all()):
        return
    n, there = A.shape[0], A.data != 0
    columns = np.zeros(A.shape[1], bool)
    columns[A.indices[there]] = True
    columns = everybody.gathered(columns, np.logical_or)[:n]
    counts = np.concatenate([[0], np.cumsum(there)])
    rows = counts[A.indptr[1:]] > counts[A.indptr[:-1]]

    def check() -> None:
        for name, full in (("row", rows), ("column", columns)):
            if not full.all():
                raise SingularMatrixError(
                    f"A is singular, because {name} {everybody.first + int(np.argmin(full))} contains only "
                    f"zeros (one of {n - int(full.sum())} such {name}s); check how A was built"
                )

    everybody.alike(check)


def row_of(A: Csr, k: int) -> int:
    """The row in which entry k is stored."""
    return int(np.searchsorted(A.indptr, k, side="right")) - 1


def with_diagonal(A: Csr) -> Csr:
    """The same matrix, with zeros stored where diagonal entries are missing."""
    missing = np.flatnonzero(~has_diagonal(A))
    if not missing.size:
        return A
    i = np.concatenate([rows_of_entries(A), missing])
    j = np.concatenate([A.indices, missing])
    return sparse.coo_array((np.concatenate([A.data, np.zeros(missing.size)]), (i, j)), shape=A.shape).tocsr()


def has_diagonal(A: Csr) -> Array:
    """For each row whether its diagonal entry is stored."""
    here = np.zeros(A.shape[0], bool)
    here[A.indices[A.indices == rows_of_entries(A)]] = True
    return here


def rows_of_entries(A: Csr) -> Array:
    """The row of each entry."""
    return np.repeat(np.arange(A.shape[0], dtype=A.indices.dtype), np.diff(A.indptr))


def vectors(values: Any, name: str, n: int, *, part: bool = False) -> Input:
    """One vector as (n,), or k of them as (n, k); `part`: a rank's rows of them, maybe none."""
    X = read(values, name)
    if X.dtype.kind == "c":
        _check_type(X.array.dtype, name)
    if len(X.shape) not in (1, 2):
        raise UsageError(f"{name} has shape {X.shape}; use shape (n,) for one vector, or (n, k) for k vectors")
    if X.shape[0] != n:
        here = f"this rank has {n} rows of A" if part else f"A is {n}x{n}"
        raise UsageError(f"{here}, but {name} has shape {X.shape}; use {n} rows")
    return X


def on_kernels(X: Input, kernels: SparseKernels) -> Any:
    """Vectors where they are solved for, in fp64 and finite; copied only if they must be."""
    found = X.on(kernels.device, np.dtype(np.float64))
    check_finite(found, X.name, kernels.xp)
    return found


def start(values: Any, b: Input, kernels: SparseKernels, *, part: bool = False) -> Any:
    """x0 in b's shape; zeros where there is none."""
    if values is None:
        return kernels.xp.zeros(b.shape, dtype=kernels.xp.float64)
    x0 = vectors(values, "x0", b.shape[0], part=part)
    if x0.shape != b.shape:
        raise UsageError(f"x0 has shape {x0.shape}, but b has shape {b.shape}; use the same shape for both")
    return on_kernels(x0, kernels)
