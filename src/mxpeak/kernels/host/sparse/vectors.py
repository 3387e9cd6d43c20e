"""Vectors of Krylov methods, fp32 and fp64, block by block: a basis is read once for two things done with it."""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import piece, row

#: Rows of a block: of a basis of 30 fp32 vectors they fit a core's second cache.
BLOCK = 1024
#: Rows summed up in the vectors' own type before fp64 takes the sum over: bounds the error by SHORT·u, not n·u.
SHORT = 512
_SUM = {"contract", "reassoc"}


@inner(inline=True)
def _share(n, tid, threads):
    """First and last row of a thread's blocks.  Loops count from its first row on: then they are in vectors."""
    blocks = (n + BLOCK - 1) // BLOCK
    return BLOCK * (blocks * tid // threads), min(n, BLOCK * (blocks * (tid + 1) // threads))


@inner(fastmath=_SUM)
def _dot(x, y):
    total = x.dtype.type(0)
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@inner(fastmath=_SUM)
def _dot4(q0, q1, q2, q3, w):
    zero = w.dtype.type(0)
    a, b, c, d = zero, zero, zero, zero
    for i in range(w.shape[0]):
        a += q0[i] * w[i]
        b += q1[i] * w[i]
        c += q2[i] * w[i]
        d += q3[i] * w[i]
    return a, b, c, d


@inner(fastmath={"contract"})
def _subtract4(w, q0, q1, q2, q3, a, b, c, d):
    for i in range(w.shape[0]):
        w[i] -= (q0[i] * a + q1[i] * b) + (q2[i] * c + q3[i] * d)


@inner(fastmath={"contract"})
def _subtract(w, q, a):
    for i in range(w.shape[0]):
        w[i] -= q[i] * a


@inner(inline=True)
def _dots(Q, k, first, end, w, h):
    """h_j += Σ q_j w over some rows."""
    for at in range(first, end, SHORT):
        to = min(at + SHORT, end)
        w_here, j = piece(w, at, to - at), 0
        while j + 4 <= k:
            a, b, c, d = _dot4(
                row(Q, j, at, to), row(Q, j + 1, at, to), row(Q, j + 2, at, to), row(Q, j + 3, at, to), w_here
            )
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
    """w -= Σ h_j q_j over some rows; h has the vectors' type."""
    w_here, j = piece(w, first, end - first), 0
    while j + 4 <= k:
        _subtract4(
            w_here,
            row(Q, j, first, end),
            row(Q, j + 1, first, end),
            row(Q, j + 2, first, end),
            row(Q, j + 3, first, end),
            h[j],
            h[j + 1],
            h[j + 2],
            h[j + 3],
        )
        j += 4
    while j < k:
        _subtract(w_here, row(Q, j, first, end), h[j])
        j += 1


@jit()
def project(tid, threads, Q, k, w, sums):
    """sums[tid] = this thread's part of Q^T w, of the first k vectors (rows of Q)."""
    mine = sums[tid]
    mine[:k] = 0.0
    first, end = _share(w.shape[0], tid, threads)
    for at in range(first, end, BLOCK):
        _dots(Q, k, at, min(at + BLOCK, end), w, mine)


@jit()
def subtract_and_project(tid, threads, Q, k, w, h, sums):
    """w -= Q h, and sums[tid] = this thread's part of Q^T w of the new w: Q is read once."""
    mine = sums[tid]
    mine[:k] = 0.0
    first, end = _share(w.shape[0], tid, threads)
    for at in range(first, end, BLOCK):
        to = min(at + BLOCK, end)
        _subtract_all(Q, k, at, to, w, h)
        _dots(Q, k, at, to, w, mine)


@jit()
def subtract_and_square(tid, threads, Q, k, w, h, sums):
    """w -= Q h, and sums[tid, 0] = this thread's part of w^T w of the new w."""
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
    """out = Q y, of the first k vectors; y has the vectors' type, out may be of another."""
    first, end = _share(out.shape[0], tid, threads)
    total = np.empty(BLOCK, Q.dtype)
    for at in range(first, end, BLOCK):
        to = min(at + BLOCK, end)
        total[:] = 0
        for j in range(k):
            _subtract(piece(total, 0, to - at), row(Q, j, at, to), -y[j])
        for i in range(to - at):
            out[at + i] = total[i]


@jit()
def dot(tid, threads, x, y, sums):
    """sums[tid, 0] = this thread's part of Σ x_i y_i."""
    first, end = _share(x.shape[0], tid, threads)
    total = 0.0
    for at in range(first, end, SHORT):
        count = min(SHORT, end - at)
        total += _dot(piece(x, at, count), piece(y, at, count))
    sums[tid, 0] = total


@jit(fastmath={"contract"})
def scale(tid, threads, y, factor, x):
    """y = factor · x, rounded to y's type."""
    first, end = _share(y.shape[0], tid, threads)
    y, x = piece(y, first, end - first), piece(x, first, end - first)
    for i in range(y.shape[0]):
        y[i] = factor * x[i]


@jit(fastmath={"contract"})
def add_scaled(tid, threads, y, factor, x):
    """y += factor · x; x may be of a narrower type."""
    first, end = _share(y.shape[0], tid, threads)
    y, x = piece(y, first, end - first), piece(x, first, end - first)
    for i in range(y.shape[0]):
        y[i] += factor * x[i]


@jit(fastmath={"contract"})
def scale_and_add(tid, threads, y, factor, x):
    """y = x + factor · y."""
    first, end = _share(y.shape[0], tid, threads)
    y, x = piece(y, first, end - first), piece(x, first, end - first)
    for i in range(y.shape[0]):
        y[i] = x[i] + factor * y[i]


@jit(fastmath=_SUM)
def subtract_from(tid, threads, y, b, sums):
    """y = b - y, and sums[tid, 0] = this thread's part of Σ y_i² of the new y."""
    first, end = _share(y.shape[0], tid, threads)
    y, b, total = piece(y, first, end - first), piece(b, first, end - first), 0.0
    for i in range(y.shape[0]):
        y[i] = b[i] - y[i]
        total += y[i] * y[i]
    sums[tid, 0] = total
