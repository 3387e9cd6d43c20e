"""Convert sparse matrices of torch, CuPy and JAX to SciPy's arrays on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from mxpeak.errors import UsageError
from mxpeak.library.frameworks import is_sparse as is_sparse_matrix
from mxpeak.library.frameworks import is_traced
from mxpeak.library.inputs import check_no_gradient, check_not_traced, is_tensor


def is_sparse(values: Any) -> bool:
    """Return whether the values are a sparse matrix of SciPy, CuPy or JAX, or a tensor."""
    return is_tensor(values) or is_sparse_matrix(values)


def on_host(A: Any) -> Any:
    """Convert a sparse matrix to one of SciPy's. It shares the memory of a matrix on the host."""
    if is_tensor(A):
        check_no_gradient(A, "A")
        from mxpeak.kernels.torch.sparse.tensors import sparse_matrix

        return sparse_matrix(A)
    if sparse.issparse(A):
        return A
    if hasattr(A, "tocsr"):
        return A.get()  # CuPy's copy on the host
    return _of_jax(A)


def _of_jax(A: Any) -> Any:
    """Convert a BCOO or BCSR matrix of JAX; raise a UsageError for batches, dense blocks and other formats."""
    check_not_traced(A.data, "A")
    pattern, inside = pattern_of_jax(A)
    return sparse.coo_array((np.asarray(A.data)[inside], pattern), shape=A.shape)


def pattern_of_jax(A: Any) -> tuple[tuple[Any, Any], Any]:
    """Return the rows and columns of the entries of a BCOO or BCSR matrix, and which of the stored numbers are entries.

    Raise a UsageError for batches, dense blocks, other formats, and indices without numbers.
    """
    kind = type(A).__name__
    if kind not in ("BCOO", "BCSR"):
        raise UsageError(f"A is a {kind} matrix of JAX; use jax.experimental.sparse.BCOO or BCSR")
    if A.n_batch or A.n_dense:
        raise UsageError(
            f"A has {A.n_batch} batch and {A.n_dense} dense dimensions, but the solver needs one sparse matrix; use "
            "n_batch=0 and n_dense=0"
        )
    if is_traced(A.indices) or (kind == "BCSR" and is_traced(A.indptr)):
        arrays = "((data, indices), shape=shape)" if kind == "BCOO" else "((data, indices, indptr), shape=shape)"
        raise UsageError(
            "the indices of A are placeholders of jax.jit or jax.vmap, but mxpeak needs their numbers; pass only the "
            f"data of A to the transformed function, and use {kind}{arrays} inside of it"
        )
    indices = np.asarray(A.indices).astype(np.int64)
    if kind == "BCSR":
        lengths = np.diff(np.asarray(A.indptr))
        rows = np.repeat(np.arange(A.shape[0]), lengths)
        return (rows, indices[: len(rows)]), slice(0, len(rows))
    inside = (indices < A.shape).all(axis=1)  # BCOO pads with indices that are out of range
    rows, columns = indices[inside].T
    return (rows, columns), inside
