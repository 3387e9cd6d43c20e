"""Create matrices, panels and vectors of a tested backend, and bounds of the results."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.layout.block_cyclic import BlockCyclic
from tests.support.backends import Backend
from tests.support.roundoff import U

#: Formats in which matrices are stored, and those that operands of products are rounded to.
STORED = {"fp64": (np.float64, U), "fp32": (np.float32, 2.0**-24)}
LOW = ("tf32", "bf16", "fp16", "fp8")
#: Errors are measured by residuals, in the widest type there is, so that no condition number enters: a factor of 2 over
#: the contract's bound is for the roundings of that type.
WIDE = np.longdouble

#: n, NB, P, Q: one block, ragged last blocks, more processes than blocks, blocks larger than the matrix.
GRIDS = [(1, 1, 1, 1), (7, 3, 1, 2), (29, 8, 2, 3), (30, 64, 3, 2), (53, 7, 3, 1)]
SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (31, 17), (5, 97), (97, 33)]


def matrix(backend: Backend, values: Any, precision: str = "fp64") -> Any:
    """A matrix of the backend with these values, cut out of a larger one of NaN."""
    rows, columns = values.shape
    A = backend.kernels.matrix(rows + 3, columns + 5, precision)[1 : rows + 1, 2 : columns + 2]
    A[:] = backend.array(np.ascontiguousarray(values))
    return A


def panel(backend: Backend, values: Any, precision: str = "fp64") -> Any:
    """A panel of the backend with these values, cut out of a taller one of NaN."""
    rows, columns = values.shape
    size = backend.kernels.panel_size(rows + 5, columns, precision)
    A = backend.kernels.panel(backend.kernels.buffer(size, precision), rows + 5, columns)[2 : rows + 2]
    A[:] = backend.array(np.ascontiguousarray(values))
    return A


def vector(backend: Backend, values: Any) -> Any:
    """An fp64 vector of the backend with these values."""
    return backend.array(np.array(values, dtype=np.float64))


def operands(backend: Backend, A: Any, B: Any, precision: str) -> tuple[Any, Any]:
    """Both operands of a product, rounded to a precision."""
    kernels, matrices = backend.kernels, []
    for side, values in (("left", A), ("right", B)):
        buffer = kernels.operand_buffer(*values.shape, precision, side)
        matrices.append(kernels.operand_matrix(buffer, *values.shape, precision, side))
        kernels.cast(matrix(backend, values, stored_as(precision)), matrices[-1], precision)
    return matrices[0], matrices[1]


def numbers(backend: Backend, array: Any) -> Any:
    """A copy of what an array of the backend holds, as NumPy knows it: low formats in fp32."""
    if backend.on_torch:
        import torch

        array = array.view(torch.float32) if array.dtype == torch.int32 else array  # TF32's disguise
        array = array.to(torch.float32) if array.itemsize < 4 else array
    entries = np.array(backend.numpy(array))
    if entries.dtype == np.int32:  # pairs of 16-bit numbers, of which only NaN is the same in fp16 and bf16
        return (entries.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return entries


def stored_as(precision: str) -> str:
    """The format of matrices whose products have operands of a precision."""
    return "fp64" if precision == "fp64" else "fp32"


def stored(values: Any, precision: str) -> Any:
    """The values as a format stores them."""
    return values.astype(STORED[precision][0])


def poisoned(values: Any, keep: Any) -> Any:
    """The values where `keep` is true, and NaN elsewhere: what is not part of an operand must not be read."""
    return np.where(keep, values, np.nan)


def lower(n: int) -> Any:
    """Which entries lie strictly below the diagonal."""
    return np.tri(n, k=-1, dtype=bool)


def within(found: Any, expected: Any, bound: Any) -> bool:
    """|found - expected| <= bound, entry by entry, evaluated in the widest type."""
    return bool(np.all(np.abs(np.asarray(found, WIDE) - np.asarray(expected, WIDE)) <= bound))


def globals_of(part: BlockCyclic) -> list[int]:
    """The global index of each local one."""
    return [part.to_global(il) for il in range(part.local_size)]


def parts(n: int, nb: int, P: int, Q: int) -> list[tuple[BlockCyclic, BlockCyclic]]:
    """Every rank's rows and columns of an n×n matrix."""
    return [(BlockCyclic(n, nb, p, P), BlockCyclic(n, nb, q, Q)) for p, q in product(range(P), range(Q))]


def upper_triangle(rng: Any, n: int) -> Any:
    """The diagonal between 1 and 2, |u_ij| < 1/2 above it."""
    return np.triu(rng.random((n, n)) - 0.5, 1) + np.diag(1.0 + rng.random(n))


def unit_lower_triangle(rng: Any, n: int) -> Any:
    """What is stored of L, |l_ij| < 1/2."""
    return np.tril(rng.random((n, n)) - 0.5, -1)


def rounded(x: Any, precision: str) -> Any:
    """x rounded by others' code; tf32 by its bits: the lower 13 off, rounded to nearest even."""
    if precision in STORED:
        return x
    if precision == "tf32":
        bits = x.view(np.uint32)
        cut = (bits + 0x0FFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
        return np.where(np.isnan(x), x, cut.view(np.float32))
    type_ = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8": ml_dtypes.float8_e4m3fn}[precision]
    with np.errstate(all="ignore"):
        return x.astype(type_).astype(np.float32)
