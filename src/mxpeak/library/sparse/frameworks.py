"""Convert sparse matrices of torch, CuPy and JAX to SciPy's arrays on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from mxpeak.errors import UsageError
from mxpeak.library.frameworks import is_sparse as is_sparse_matrix
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
    if type(A).__name__ not in ("BCOO", "BCSR"):
        raise UsageError(f"A is a {type(A).__name__} matrix of JAX; use jax.experimental.sparse.BCOO or BCSR")
    if A.n_batch or A.n_dense:
        raise UsageError(
            f"A has {A.n_batch} batch and {A.n_dense} dense dimensions, but the solver needs one sparse matrix; use "
            "n_batch=0 and n_dense=0"
        )
    values, indices = np.asarray(A.data), np.asarray(A.indices)
    if type(A).__name__ == "BCSR":
        return sparse.csr_array((values, indices, np.asarray(A.indptr)), shape=A.shape)
    inside = (indices < A.shape).all(axis=1)  # BCOO pads with indices that are out of range
    return sparse.coo_array((values[inside], tuple(indices[inside].T)), shape=A.shape)
