"""FACT: the panel factorization with partial pivoting, whole in compiled code, all threads in step (rocHPL §III-A).

The rank's rows of the panel are cut into tiles of a multiple of NB rows, distributed round-robin to the threads; a
tile is touched by its own thread only, except that thread 0 moves pivot rows.  Per column there are two barriers: after
everybody's search for the pivot, and after thread 0 has found the best over threads and ranks, and moved the rows.

    active rows    those not finished: on the process row that owns the diagonal block, row j and below for column j
    L1             the jb×jb block of finished rows (L11 and U11), the same on every rank of the process column
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.contract.lu import HAS_TOP, HEAD, ROW, VALUE
from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, TABLE, VECTOR, inner, jit
from mxpeak.kernels.host.engine.vector_ir import (
    address_of,
    barrier,
    call_at,
    column,
    cycles,
    gemm_at,
    prefetch,
    trsm_at,
)

RIGHT, LEFT, CROUT = range(3)
LEAF, SOLVE, TOP, UPDATE = range(4)

# Indices in `state`, which all threads see.
SINGULAR, BROKEN, LEAF_CYCLES, SWAP_CYCLES, ALL_CYCLES = range(5)


@inner()
def _tile_rows(t, tile, first, rows):
    """The active rows of tile t."""
    return max(t * tile, first), min((t + 1) * tile, rows)


@inner(fastmath={"contract"})
def _finish_column(A, L1, j, c0, c1, r0, r1, variant, reciprocal):
    """Rows r0:r1 after pivot j is known: scale column j, then bring up to date what this variant needs next.

    right            A[:, j+1:c1] -= A[:, j] · L1[j, j+1:c1]
    left, crout      A[:, j+1]    -= A[:, c0:j+1] · L1[c0:j+1, j+1]
    """
    rows = r1 - r0
    if rows <= 0:
        return
    l_j = column(A, j, r0, r1)
    for r in range(rows):
        l_j[r] *= reciprocal
    if variant == RIGHT:
        for c in range(j + 1, c1):
            a_c, u = column(A, c, r0, r1), L1[j, c]
            for r in range(rows):
                a_c[r] -= l_j[r] * u
    elif j + 1 < c1:
        a_next = column(A, j + 1, r0, r1)
        for k in range(c0, j + 1):
            l_k, u = column(A, k, r0, r1), L1[k, j + 1]
            for r in range(rows):
                a_next[r] -= l_k[r] * u


@inner()
def _search(A, j, r0, r1, best, where, tid):
    """Thread tid's largest |A[r, j]| so far, and its row; on ties the upper row; a NaN never wins."""
    largest, at = best[tid * 8], where[tid * 8]
    if r1 > r0:
        a_j = column(A, j, r0, r1)
        for r in range(r1 - r0):
            value = abs(a_j[r])
            if value > largest:
                largest, at = value, r0 + r
    best[tid * 8], where[tid * 8] = largest, at


@inner()
def _to_global(il, nb, p, P):
    return (il // nb * P + p) * nb + il % nb


@inner()
def _move_rows(A, L1, j, top, pivots, geometry, mine, state, best, where, threads, exchange):
    """Thread 0: the best candidate of all threads and ranks becomes row j of L1; row j goes where it came from.

    The exchange is one combined max-and-row reduction over the process column: it leaves in `mine` the winner's
    row and the old row j.
    """
    il0, nb, p, P, jb = geometry[0], geometry[1], geometry[2], geometry[3], L1.shape[0]
    largest, at = -1.0, np.int64(-1)
    for t in range(threads):
        if best[t * 8] > largest or (best[t * 8] == largest and where[t * 8] < at):
            largest, at = best[t * 8], where[t * 8]
        best[t * 8] = -1.0
    if at < 0 and top > 0:
        at = j  # nothing but NaN to choose from: stay, so that the NaN is carried to the result
        largest = 0.0
    if P == 1:
        pivots[j] = _to_global(il0 + at, nb, p, P)
        for c in range(jb):  # each is a cache line, maybe another thread's: ask for all before waiting for one
            prefetch(address_of(A, at, c))
        for c in range(jb):
            L1[j, c] = A[at, c]
            A[at, c] = A[j, c]
        return
    mine[VALUE] = largest
    mine[ROW] = _to_global(il0 + at, nb, p, P) if at >= 0 else -1
    mine[HAS_TOP] = 1.0 if top > 0 else 0.0
    if at >= 0:
        for c in range(jb):
            mine[HEAD + c] = A[at, c]
    if top > 0:
        for c in range(jb):
            mine[HEAD + jb + c] = A[j, c]
    begin = cycles()
    if call_at(exchange) != 0:
        state[BROKEN] = 1
        return
    state[SWAP_CYCLES] += cycles() - begin
    winner = np.int64(mine[ROW])
    pivots[j] = winner
    for c in range(jb):
        L1[j, c] = mine[HEAD + c]
    if winner // nb % P == p:
        at = winner // nb // P * nb + winner % nb - il0
        for c in range(jb):
            A[at, c] = mine[HEAD + jb + c]


@inner()
def _row_of_u(L1, j, c0, c1, variant):
    """Thread 0: what left and Crout need of U besides the pivot row itself.

    left     L1[c0:j+1, j+1] = unit_lower(L1[c0:j+1, c0:j+1])^-1 · L1[c0:j+1, j+1]
    crout    L1[j, j+1:c1]  -= L1[j, c0:j] · L1[c0:j, j+1:c1]
    """
    if variant == LEFT and j + 1 < c1:
        for i in range(c0 + 1, j + 1):
            for k in range(c0, i):
                L1[i, j + 1] -= L1[i, k] * L1[k, j + 1]
    elif variant == CROUT:
        for c in range(j + 1, c1):
            for k in range(c0, j):
                L1[j, c] -= L1[j, k] * L1[k, c]


@inner()
def _leaf(tid, threads, A, L1, c0, c1, top, variant, pivots, geometry, mine, state, best, where, sync, exchange, give):
    """Factor columns c0:c1 one by one."""
    rows, tile = A.shape[0], geometry[4]
    tiles = (rows + tile - 1) // tile
    for t in range(tid, tiles, threads):
        r0, r1 = _tile_rows(t, tile, c0 if top > 0 else 0, rows)
        _search(A, c0, r0, r1, best, where, tid)
    for j in range(c0, c1):
        barrier(sync, threads, give)
        if tid == 0:
            _move_rows(A, L1, j, top, pivots, geometry, mine, state, best, where, threads, exchange)
            if state[BROKEN] == 0:
                _row_of_u(L1, j, c0, c1, variant)
        barrier(sync, threads, give)
        if state[BROKEN] != 0:
            return
        pivot = L1[j, j]
        if pivot == 0.0:
            if tid == 0 and state[SINGULAR] == 0:
                state[SINGULAR] = j + 1
            pivot = L1.dtype.type(1)  # a column of zeros stays one; the caller hears of it through SINGULAR
        reciprocal = L1.dtype.type(1) / pivot
        for t in range(tid, tiles, threads):
            r0, r1 = _tile_rows(t, tile, j + 1 if top > 0 else 0, rows)
            _finish_column(A, L1, j, c0, c1, r0, r1, variant, reciprocal)
            if j + 1 < c1:
                _search(A, j + 1, r0, r1, best, where, tid)


@inner()
def _update(tid, threads, A, L1, op, top, tile, gemm):
    """A[r0:, c0:c1] -= A[r0:, k0:k1] · L1[k0:k1, c0:c1], each thread its own tiles; one thread: all rows at once."""
    rows = A.shape[0]
    first = op[1] if top > 0 else 0
    k0, k1, c0, c1 = op[3], op[4], op[5], op[6]
    ld, ld1 = A.strides[1] // A.itemsize, L1.strides[1] // L1.itemsize
    minus_one = A.dtype.type(-1)
    if threads == 1:
        tile = max(rows, 1)
    for t in range(tid, (rows + tile - 1) // tile, threads):
        r0, r1 = _tile_rows(t, tile, first, rows)
        if r1 > r0:
            gemm_at(
                gemm,
                r1 - r0,
                c1 - c0,
                k1 - k0,
                minus_one,
                address_of(A, r0, k0),
                ld,
                address_of(L1, k0, c0),
                ld1,
                address_of(A, r0, c0),
                ld,
            )


_WORK = (TABLE, INT, INT, INTEGERS, INTEGERS, VECTOR, INTEGERS, VECTOR, INTEGERS, INTEGERS, INTEGERS)


@jit(INT, INT, MATRIX, MATRIX, *_WORK, also=(INT, INT, MATRIX32, MATRIX32, *_WORK))
def factor_panel(tid, threads, A, L1, plan, variant, top, pivots, geometry, mine, state, best, where, sync, calls):
    """Execute the panel plan as thread tid of `threads`; every thread calls this with the same arguments.

    A[m×jb] this rank's active rows, from the block row down; overwritten: L21 below, row j of the block row is dead.
    top     rows of A that belong to the block row: jb on the process row that owns it, else 0
    calls   addresses of gemm, trsm, the exchange (0 where P = 1), and sched_yield
    """
    gemm, trsm, exchange, give = calls[0], calls[1], calls[2], calls[3]
    one, minus_one = L1.dtype.type(1), L1.dtype.type(-1)
    ld1 = L1.strides[1] // L1.itemsize
    best[tid * 8], where[tid * 8] = -1.0, -1
    begin = cycles()
    for step in range(plan.shape[0]):
        op = plan[step]
        k0, k1, c0, c1 = op[3], op[4], op[5], op[6]
        if op[0] == LEAF:
            leaf_begin = cycles()
            _leaf(
                tid,
                threads,
                A,
                L1,
                c0,
                c1,
                top,
                variant,
                pivots,
                geometry,
                mine,
                state,
                best,
                where,
                sync,
                exchange,
                give,
            )
            if state[BROKEN] != 0:
                return
            if tid == 0:
                state[LEAF_CYCLES] += cycles() - leaf_begin
        elif op[0] == UPDATE:
            barrier(sync, threads, give)
            _update(tid, threads, A, L1, op, top, geometry[4], gemm)
        elif tid == 0:
            if op[0] == SOLVE:
                trsm_at(trsm, k1 - k0, c1 - c0, one, address_of(L1, k0, k0), ld1, address_of(L1, k0, c0), ld1)
            else:
                r0, r1 = op[1], op[2]
                gemm_at(
                    gemm,
                    r1 - r0,
                    c1 - c0,
                    k1 - k0,
                    minus_one,
                    address_of(L1, r0, k0),
                    ld1,
                    address_of(L1, k0, c0),
                    ld1,
                    address_of(L1, r0, c0),
                    ld1,
                )
    barrier(sync, threads, give)
    if tid == 0:
        state[ALL_CYCLES] += cycles() - begin
