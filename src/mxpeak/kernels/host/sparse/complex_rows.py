"""Products and Gauss–Seidel sweeps of complex matrices in compressed rows, in the natural order.

Row i has the entries indptr[i] … indptr[i+1]-1 in ascending columns. Its entries of L end before lower[i], and its
entries of U begin at upper[i]; the diagonal is between them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mxpeak.kernels.host.engine.jit import inner, jit


class ComplexRows(NamedTuple):
    """A square matrix as compiled code receives it; `inverse` contains 1 / a_ii."""

    indptr: Any
    indices: Any
    data: Any
    lower: Any
    upper: Any
    inverse: Any


@inner()
def _row_at(indptr, entry):
    """Return the first row that begins at this entry or later, by binary search."""
    low, high = 0, indptr.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if indptr[middle] < entry:
            low = middle + 1
        else:
            high = middle
    return low


@jit()
def multiply(tid, threads, indptr, indices, data, x, y, add):
    """Compute y = A x, or y += A x if `add`, for this thread's rows, which have about the same number of entries."""
    n = y.shape[0]
    first = _row_at(indptr, indptr[n] * tid // threads) if tid else 0
    end = _row_at(indptr, indptr[n] * (tid + 1) // threads) if tid + 1 < threads else n
    for i in range(first, end):
        total = y[i] if add else y.dtype.type(0)
        for k in range(indptr[i], indptr[i + 1]):
            total += data[k] * x[indices[k]]
        y[i] = total


@jit()
def sweep_lower(A, b, x, keep):
    """Solve (D + L) x = b from the first row to the last; store b - L x in `keep` unless it is empty."""
    for i in range(b.shape[0]):
        total = b[i]
        for k in range(A.indptr[i], A.lower[i]):
            total -= A.data[k] * x[A.indices[k]]
        if keep.shape[0]:
            keep[i] = total
        x[i] = total * A.inverse[i]


@jit()
def sweep_all(A, b, x, keep):
    """Sweep from the first row to the last from the current x; store b - L x in `keep` unless it is empty."""
    for i in range(b.shape[0]):
        total = b[i]
        for k in range(A.indptr[i], A.lower[i]):
            total -= A.data[k] * x[A.indices[k]]
        if keep.shape[0]:
            keep[i] = total
        for k in range(A.upper[i], A.indptr[i + 1]):
            total -= A.data[k] * x[A.indices[k]]
        x[i] = total * A.inverse[i]


@jit()
def sweep_upper(A, keep, x):
    """Solve (D + U) x = keep from the last row to the first."""
    for i in range(keep.shape[0] - 1, -1, -1):
        total = keep[i]
        for k in range(A.upper[i], A.indptr[i + 1]):
            total -= A.data[k] * x[A.indices[k]]
        x[i] = total * A.inverse[i]
