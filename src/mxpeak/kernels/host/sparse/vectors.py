"""Vector operations of Krylov methods, block by block, so that fused operations read the basis only once.

A basis, and the vectors of multigrid levels, may be in bf16 or fp16. Their numbers are widened as they are read. Sums
have the type of the other vectors, or fp32.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.half import narrowed, widened
from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import piece, row

#: Rows of a block. With a basis of 30 fp32 vectors, a block fits in the L2 cache.
BLOCK = 1024
#: Rows that are summed in the vectors' own type before fp64, which bounds the error by SHORT·u instead of n·u.
SHORT = 512
_SUM = {"contract", "reassoc"}


@inner(inline=True)
def _share(n, tid, threads):
    """Return the range (first row, end) of a thread's blocks.

    Loops take a piece of the vector that starts at the first row, so that they vectorize.
    """
    blocks = (n + BLOCK - 1) // BLOCK
    return BLOCK * (blocks * tid // threads), min(n, BLOCK * (blocks * (tid + 1) // threads))


@inner(fastmath=_SUM)
def _dot(x, y):
    """Return the dot product Σ x_i y_i in the type of y."""
    total = y.dtype.type(0)
    for i in range(x.shape[0]):
        total += widened(x[i]) * y[i]
    return total


@inner(fastmath=_SUM)
def _dot4(q0, q1, q2, q3, w):
    """Return the dot products of the four vectors q0 to q3 with w."""
    zero = w.dtype.type(0)
    a, b, c, d = zero, zero, zero, zero
    for i in range(w.shape[0]):
        a += widened(q0[i]) * w[i]
        b += widened(q1[i]) * w[i]
        c += widened(q2[i]) * w[i]
        d += widened(q3[i]) * w[i]
    return a, b, c, d


@inner(fastmath={"contract"})
def _subtract4(w, vectors, factors):
    """Subtract four vectors times their factors from w, in place."""
    (q0, q1, q2, q3), (a, b, c, d) = vectors, factors
    for i in range(w.shape[0]):
        w[i] -= (widened(q0[i]) * a + widened(q1[i]) * b) + (widened(q2[i]) * c + widened(q3[i]) * d)


@inner(fastmath={"contract"})
def _subtract(w, q, a):
    """Subtract the vector q times the number a from w, in place."""
    for i in range(w.shape[0]):
        w[i] -= widened(q[i]) * a


@inner(inline=True)
def _dots(Q, k, first, end, w, h):
    """Add the dot products q_j · w over the rows first … end-1 to h_j, for the first k vectors."""
    for at in range(first, end, SHORT):
        to = min(at + SHORT, end)
        w_here, j = piece(w, at, to - at), 0
        while j + 4 <= k:
            q0, q1, q2, q3 = row(Q, j, at, to), row(Q, j + 1, at, to), row(Q, j + 2, at, to), row(Q, j + 3, at, to)
            a, b, c, d = _dot4(q0, q1, q2, q3, w_here)
            h[j] += a
            h[j + 1] += b
            h[j + 2] += c
            h[j + 3] += d
            j += 4
        while j < k:
            h[j] += _dot(row(Q, j, at, to), w_here)
            j += 1


@inner(inline=True)
def _subtract_all(Q, k, first, end, w, h):
    """Compute w -= Σ h_j q_j over the rows first … end-1, for the first k vectors; h has the type of w."""
    w_here, j = piece(w, first, end - first), 0
    while j + 4 <= k:
        q0, q1 = row(Q, j, first, end), row(Q, j + 1, first, end)
        q2, q3 = row(Q, j + 2, first, end), row(Q, j + 3, first, end)
        _subtract4(w_here, (q0, q1, q2, q3), (h[j], h[j + 1], h[j + 2], h[j + 3]))
        j += 4
    while j < k:
        _subtract(w_here, row(Q, j, first, end), h[j])
        j += 1


@jit()
def project(tid, threads, Q, k, w, sums):
    """Store this thread's partial sums of Q^T w, for the first k vectors (rows of Q), in sums[tid]."""
    products = sums[tid]
    products[:k] = 0.0
    first, end = _share(w.shape[0], tid, threads)
    for at in range(first, end, BLOCK):
        _dots(Q, k, at, min(at + BLOCK, end), w, products)


@jit()
def subtract_and_project(tid, threads, Q, k, w, h, sums):
    """Compute w -= Q h, and store this thread's partial sums of Q^T w for the updated w in sums[tid]."""
    products = sums[tid]
    products[:k] = 0.0
    first, end = _share(w.shape[0], tid, threads)
    for at in range(first, end, BLOCK):
        to = min(at + BLOCK, end)
        _subtract_all(Q, k, at, to, w, h)
        _dots(Q, k, at, to, w, products)


@jit()
def subtract_and_square(tid, threads, Q, k, w, h, sums):
    """Compute w -= Q h, and store this thread's partial sum of w^T w for the updated w in sums[tid, 0]."""
    first, end = _share(w.shape[0], tid, threads)
    total = 0.0
    for at in range(first, end, BLOCK):
        to = min(at + BLOCK, end)
        _subtract_all(Q, k, at, to, w, h)
        for s in range(at, to, SHORT):
            w_here = piece(w, s, min(SHORT, to - s))
            total += _dot(w_here, w_here)
    sums[tid, 0] = total


@jit(allocates=True)
def combine(tid, threads, Q, k, y, out):
    """Compute out = Q y with the first k vectors. Sums have the type of y, and `out` may have a different type."""
    first, end = _share(out.shape[0], tid, threads)
    total = np.empty(BLOCK, y.dtype)
    for at in range(first, end, BLOCK):
        to = min(at + BLOCK, end)
        total[:] = 0
        for j in range(k):
            _subtract(piece(total, 0, to - at), row(Q, j, at, to), -y[j])
        for i in range(to - at):
            out[at + i] = total[i]


@jit()
def dot(tid, threads, x, y, sums):
    """Store this thread's partial sum of x^T y in sums[tid, 0]."""
    first, end = _share(x.shape[0], tid, threads)
    total = 0.0
    for at in range(first, end, SHORT):
        count = min(SHORT, end - at)
        total += _dot(piece(x, at, count), piece(y, at, count))
    sums[tid, 0] = total


@jit(fastmath={"contract"})
def scale(tid, threads, y, factor, x):
    """Compute y = factor · x for this thread's rows, rounded to y's type."""
    first, end = _share(y.shape[0], tid, threads)
    y, x = piece(y, first, end - first), piece(x, first, end - first)
    for i in range(y.shape[0]):
        y[i] = narrowed(factor * widened(x[i]), y[i])


@jit(fastmath={"contract"})
def add_scaled(tid, threads, y, factor, x):
    """Compute y += factor · x for this thread's rows. x may have a narrower type than y."""
    first, end = _share(y.shape[0], tid, threads)
    y, x = piece(y, first, end - first), piece(x, first, end - first)
    for i in range(y.shape[0]):
        y[i] += factor * widened(x[i])


@jit(fastmath={"contract"})
def scale_and_add(tid, threads, y, factor, x):
    """Compute y = x + factor · y for this thread's rows."""
    first, end = _share(y.shape[0], tid, threads)
    y, x = piece(y, first, end - first), piece(x, first, end - first)
    for i in range(y.shape[0]):
        y[i] = x[i] + factor * y[i]


@jit(fastmath=_SUM)
def subtract_from(tid, threads, y, b, sums):
    """Compute y = b - y, and store this thread's partial sum of y^T y for the updated y in sums[tid, 0]."""
    first, end = _share(y.shape[0], tid, threads)
    y, b, total = piece(y, first, end - first), piece(b, first, end - first), 0.0
    for i in range(y.shape[0]):
        y[i] = b[i] - y[i]
        total += y[i] * y[i]
    sums[tid, 0] = total


@jit(fastmath={"contract"})
def subtract_halo(tid, threads, H, values, halo, targets, y, saved):
    """Compute y[targets_s] -= Σ_h a_sh halo_h for the rows s of H with targets_s >= 0.

    Unless `saved` is empty, the previous y[targets_s] is stored in saved_s.
    """
    count = H.rows.shape[0]
    for s in range(count * tid // threads, count * (tid + 1) // threads):
        if targets[s] >= 0:
            total = widened(y[targets[s]])
            if saved.shape[0] > 0:
                saved[s] = y[targets[s]]
            for k in range(H.first[s], H.first[s + 1]):
                total -= values[k] * widened(halo[H.columns[k]])
            y[targets[s]] = narrowed(total, y[targets[s]])


@jit(fastmath={"contract"})
def add_halo(tid, threads, H, values, halo, y):
    """Compute y_i += Σ_h a_ih halo_h for this thread's rows i of H."""
    count = H.rows.shape[0]
    for s in range(count * tid // threads, count * (tid + 1) // threads):
        total = y[H.rows[s]]
        for k in range(H.first[s], H.first[s + 1]):
            total += values[k] * widened(halo[H.columns[k]])
        y[H.rows[s]] = total


@jit()
def scatter_add(tid, threads, rows, y, x):
    """Compute x[rows_k] += y_k for this thread's rows."""
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        x[rows[k]] = narrowed(widened(x[rows[k]]) + widened(y[k]), x[rows[k]])


@jit()
def scatter(tid, threads, rows, y, x):
    """Compute x[rows_k] = y_k for this thread's rows."""
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        x[rows[k]] = y[k]


@jit()
def gather(tid, threads, rows, x, out):
    """Compute out_k = x[rows_k] for this thread's rows."""
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        out[k] = x[rows[k]]
