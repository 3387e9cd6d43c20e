"""Convert sparse tensors to SciPy's arrays."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sparse
import torch

from mxpeak.errors import UsageError
from mxpeak.kernels.torch.engine.tensors import array_of


def sparse_matrix(A: torch.Tensor) -> Any:
    """Convert a CSR, CSC or COO tensor to SciPy's array of the same format on the host; reject other layouts."""
    A, shape = A.detach(), tuple(A.shape)
    if A.layout == torch.sparse_csr:
        parts = (_supported(A.values()), A.col_indices(), A.crow_indices())
        return sparse.csr_array(tuple(map(array_of, parts)), shape=shape)
    if A.layout == torch.sparse_csc:
        parts = (_supported(A.values()), A.row_indices(), A.ccol_indices())
        return sparse.csc_array(tuple(map(array_of, parts)), shape=shape)
    if A.layout == torch.sparse_coo and not A.dense_dim():
        return sparse.coo_array((array_of(_supported(A._values())), tuple(array_of(A._indices()))), shape=shape)
    what, instead = {
        torch.strided: ("a dense tensor", "to_sparse_csr(), or mxpeak.solve(A, b) for a dense matrix"),
        torch.sparse_coo: ("a sparse tensor with dense rows", "to_dense().to_sparse_csr()"),
    }.get(A.layout, (f"a tensor of layout {A.layout}", "to_sparse_coo()"))
    raise UsageError(
        f"A is {what}, but the solver needs the layout sparse_csr, sparse_csc or sparse_coo; use A.{instead}"
    )


def _supported(values: torch.Tensor) -> torch.Tensor:
    """Return the values in a type that SciPy supports: fp16 and bf16 become fp32."""
    return values.to(torch.float32) if values.dtype in (torch.float16, torch.bfloat16) else values
