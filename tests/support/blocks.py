"""Create matrices, panels and vectors of a tested backend, and bounds of the results."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.layout.block_cyclic import BlockCyclic
from tests.support.backends import Backend
from tests.support.roundoff import U

#: Storage formats of matrices, and formats to which operands of products are rounded.
STORED = {"fp64": (np.float64, U), "fp32": (np.float32, 2.0**-24)}
LOW = ("tf32", "bf16", "fp16", "fp8")
#: Errors are measured by residuals in the widest type, so that no condition number enters. The factor of 2 over the
#: contract's bound covers the roundings of that type.
WIDE = np.longdouble

#: n, NB, P, Q: one block, ragged last blocks, more processes than blocks, blocks larger than the matrix.
GRIDS = [(1, 1, 1, 1), (7, 3, 1, 2), (29, 8, 2, 3), (30, 64, 3, 2), (53, 7, 3, 1)]
SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (31, 17), (5, 97), (97, 33)]


def matrix(backend: Backend, values: Any, precision: str = "fp64") -> Any:
    """Return a matrix of the backend with these values, as a part of a larger one of NaN."""
    rows, columns = values.shape
    A = backend.kernels.matrix(rows + 3, columns + 5, precision)[1 : rows + 1, 2 : columns + 2]
    A[:] = backend.array(np.ascontiguousarray(values))
    return A


def panel(backend: Backend, values: Any, precision: str = "fp64") -> Any:
    """Return a panel of the backend with these values, as a part of a taller one of NaN."""
    rows, columns = values.shape
    size = backend.kernels.panel_size(rows + 5, columns, precision)
    A = backend.kernels.panel(backend.kernels.buffer(size, precision), rows + 5, columns)[2 : rows + 2]
    A[:] = backend.array(np.ascontiguousarray(values))
    return A


def vector(backend: Backend, values: Any) -> Any:
    """Return an fp64 vector of the backend with these values."""
    return backend.array(np.array(values, dtype=np.float64))


def operands(backend: Backend, A: Any, B: Any, precision: str) -> tuple[Any, Any]:
    """Return both operands of a product, rounded to a precision."""
    kernels, matrices = backend.kernels, []
    for side, values in (("left", A), ("right", B)):
        buffer = kernels.operand_buffer(*values.shape, precision, side)
        matrices.append(kernels.operand_matrix(buffer, *values.shape, precision, side))
        kernels.cast(matrix(backend, values, stored_as(precision)), matrices[-1], precision)
    return matrices[0], matrices[1]


def numbers(backend: Backend, array: Any) -> Any:
    """Return a NumPy copy of an array of the backend; low formats become fp32."""
    if backend.on_torch:
        import torch

        array = array.view(torch.float32) if array.dtype == torch.int32 else array  # the storage of TF32
        array = array.to(torch.float32) if array.itemsize < 4 else array
    entries = np.array(backend.numpy(array))
    if entries.dtype == np.int32:  # pairs of 16-bit numbers; only NaN is the same in fp16 and bf16
        return (entries.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return entries


def stored_as(precision: str) -> str:
    """Return the storage format of matrices whose products have operands of a precision."""
    return "fp64" if precision == "fp64" else "fp32"


def stored(values: Any, precision: str) -> Any:
    """Return the values after a conversion to a storage format."""
    return values.astype(STORED[precision][0])


def poisoned(values: Any, keep: Any) -> Any:
    """Replace the values by NaN except where `keep` is true, to detect reads of entries outside an operand."""
    return np.where(keep, values, np.nan)


def lower(n: int) -> Any:
    """Return the mask of the entries strictly below the diagonal."""
    return np.tri(n, k=-1, dtype=bool)


def within(found: Any, expected: Any, bound: Any) -> bool:
    """Check |found - expected| <= bound for each entry, evaluated in the widest type."""
    return bool(np.all(np.abs(np.asarray(found, WIDE) - np.asarray(expected, WIDE)) <= bound))


def globals_of(part: BlockCyclic) -> list[int]:
    """Return the global index of each local index."""
    return [part.to_global(il) for il in range(part.local_size)]


def parts(n: int, nb: int, P: int, Q: int) -> list[tuple[BlockCyclic, BlockCyclic]]:
    """Return every rank's rows and columns of an n×n matrix."""
    return [(BlockCyclic(n, nb, p, P), BlockCyclic(n, nb, q, Q)) for p, q in product(range(P), range(Q))]


def upper_triangle(rng: Any, n: int) -> Any:
    """Return an upper triangle with a diagonal between 1 and 2 and |u_ij| < 1/2 above it."""
    return np.triu(rng.random((n, n)) - 0.5, 1) + np.diag(1.0 + rng.random(n))


def unit_lower_triangle(rng: Any, n: int) -> Any:
    """Return the stored part of a unit lower triangle L with |l_ij| < 1/2."""
    return np.tril(rng.random((n, n)) - 0.5, -1)


def rounded(x: Any, precision: str) -> Any:
    """Round x with another library; round tf32 by clearing the lower 13 bits, to nearest even."""
    if precision in STORED:
        return x
    if precision == "tf32":
        bits = x.view(np.uint32)
        cut = (bits + 0x0FFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
        return np.where(np.isnan(x), x, cut.view(np.float32))
    type_ = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8": ml_dtypes.float8_e4m3fn}[precision]
    with np.errstate(all="ignore"):
        return x.astype(type_).astype(np.float32)
