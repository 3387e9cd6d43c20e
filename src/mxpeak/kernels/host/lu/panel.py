"""Factor a panel with partial pivoting (FACT), in compiled code on all threads (rocHPL §III-A).

The rank's rows of the panel are divided into tiles of a multiple of NB rows, distributed round-robin to the threads.
Only the owning thread accesses a tile, except for row moves. Each column needs two barriers. At the first, all threads
have searched for the pivot. At the second, thread 0 has selected the best candidate of all threads and ranks and has
moved the rows. With one process row, thread 0 moves only the columns of the leaf. At the end of the leaf, all threads
move the other columns, followed by a third barrier.

    active rows    the unfinished rows: on the process row that owns the diagonal block, row j and below for column j
    L1             the jb×jb block of finished rows (L11 and U11), the same on every rank of the process column
"""

from __future__ import annotations

import ctypes
from itertools import product
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.contract.lu import HAS_TOP, HEAD, ROW, VALUE, Exchange, Panel, PanelOutcome
from mxpeak.kernels.host.engine import blas
from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, TABLE, VECTOR, inner, jit
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.engine.vector_ir import (
    HAS_AVX512,
    SYNC,
    Vectors,
    address_of,
    barrier,
    call_at,
    column,
    column_block,
    constant,
    cycles,
    gemm_at,
    prefetch,
    sched_yield_address,
    trsm_at,
)
from mxpeak.layout.panel_plan import PanelOp

Array = np.ndarray[Any, np.dtype[Any]]

RIGHT, LEFT, CROUT = range(3)
LEAF, SOLVE, TOP, UPDATE = range(4)

#: Bytes of a vector register, and the vectors of each column that are processed together.
REGISTER, VECTORS = 64 if HAS_AVX512 else 32, 4

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# Indices in `state`.
SINGULAR, BROKEN, LEAF_CYCLES, SWAP_CYCLES, ALL_CYCLES = range(5)
# Indices in `calls`.
GEMM, TRSM, EXCHANGE, YIELD = range(4)


class PanelWork(NamedTuple):
    """The arrays of one panel factorization that all threads share.

    pivots      the global index of the row that became each pivot row
    geometry    local row of the panel's first row; NB, p, P of the rows; rows per tile
    candidate   this rank's pivot candidate, which the exchange replaces with the best one
    state       the first singular column, whether the exchange failed, and cycles
    best, where the largest |pivot| of each thread, and its row
    sync        the barrier
    calls       addresses of gemm, trsm, the exchange (0 if P = 1), and sched_yield
    """

    pivots: np.ndarray
    geometry: np.ndarray
    candidate: np.ndarray
    state: np.ndarray
    best: np.ndarray
    where: np.ndarray
    sync: np.ndarray
    calls: np.ndarray


_ARRAYS = INTEGERS, INTEGERS, VECTOR, INTEGERS, VECTOR, INTEGERS, INTEGERS, INTEGERS
_WORK = TABLE, INT, INT, types.NamedTuple(_ARRAYS, PanelWork)


@inner()
def _tile_rows(t, tile, first, rows):
    """Return the active rows of tile t as a range (first row, end)."""
    return max(t * tile, first), min((t + 1) * tile, rows)


class _LargestRow:
    """Emit a running search for the row with the largest absolute value, over chunks of rows in vector registers.

    NaN is ignored. Of equally large entries, the upper one is chosen.
    """

    def __init__(self, vectors):
        self._vectors, start = vectors, [-1.0] * vectors.lanes
        self._largest = [self._slot(constant(vectors.real, start)) for _ in range(VECTORS)]
        self._chunk = [self._slot(constant(_I64, [0] * vectors.lanes)) for _ in range(VECTORS)]

    def _slot(self, value):
        return cgutils.alloca_once_value(self._vectors.builder, value)

    def compare(self, values, chunk):
        """Emit a comparison of a chunk's values with the largest values found so far in the same lanes."""
        vectors, builder = self._vectors, self._vectors.builder
        chunk = vectors.all(chunk)
        for value, largest, at in zip(values, self._largest, self._chunk):
            size, before = builder.call(vectors.function("fabs", 1), [value]), builder.load(largest)
            larger = builder.fcmp_ordered(">", size, before)
            builder.store(builder.select(larger, size, before), largest)
            builder.store(builder.select(larger, chunk, builder.load(at)), at)

    def result(self):
        """Return the largest value, or -1 without values, and its row."""
        vectors, builder = self._vectors, self._vectors.builder
        value, row = ir.Constant(vectors.real, -1.0), _I64(0)
        for v, lane in product(range(VECTORS), range(vectors.lanes)):
            size = builder.extract_element(builder.load(self._largest[v]), _I32(lane))
            chunk = builder.extract_element(builder.load(self._chunk[v]), _I32(lane))
            at = builder.add(builder.mul(chunk, _I64(VECTORS * vectors.lanes)), _I64(v * vectors.lanes + lane))
            equal = builder.and_(builder.fcmp_ordered("==", size, value), builder.icmp_signed("<", at, row))
            better = builder.or_(builder.fcmp_ordered(">", size, value), equal)
            value, row = builder.select(better, size, value), builder.select(better, at, row)
        return value, row


@intrinsic
def _finish_chunks(typingctx, of, first, apart, u, reciprocal, before, chunks):
    """Compute l_j = reciprocal·a_j and a_(j+1) -= Σ_(k<=j) l_k u_k in chunks of rows, and search a_(j+1).

    The function reads and writes each entry once, because the sums stay in registers. It returns the largest |a_(j+1)|
    and its row.

    first     the address of the first column l_k; the columns are `apart` bytes apart
    u         the address of the contiguous factors u_k
    before    the number of columns l_k before l_j
    """
    signature = types.Tuple((of.dtype, types.int64))(of, *[types.int64] * 3, of.dtype, *[types.int64] * 2)

    def codegen(context, builder, signature, args):
        _, first, apart, u, reciprocal, before, chunks = args
        vectors = Vectors.of_registers(context, builder, of, REGISTER, REGISTER)
        a_j = builder.add(first, builder.mul(apart, before))
        a_next, scale = builder.add(a_j, apart), vectors.all(reciprocal)
        sums = [cgutils.alloca_once(builder, vectors.type) for _ in range(VECTORS)]
        search = _LargestRow(vectors)

        def subtract(l_k, k):
            minus_u = vectors.minus(builder.add(u, builder.mul(k, _I64(vectors.size))))[0]
            for value, total in zip(l_k, sums):
                builder.store(vectors.add_product(value, minus_u, builder.load(total)), total)

        with cgutils.for_range(builder, chunks) as chunk:
            down = builder.mul(chunk.index, _I64(REGISTER * VECTORS))
            rows = [builder.add(down, _I64(REGISTER * v)) for v in range(VECTORS)]
            for row, total in zip(rows, sums):
                builder.store(vectors.load(builder.add(a_next, row)), total)
            with cgutils.for_range(builder, before) as loop:
                column = builder.add(first, builder.mul(apart, loop.index))
                subtract([vectors.load(builder.add(column, row)) for row in rows], loop.index)
            l_j = [builder.fmul(vectors.load(builder.add(a_j, row)), scale) for row in rows]
            subtract(l_j, before)
            results = [builder.load(total) for total in sums]
            for row, l, a in zip(rows, l_j, results):
                vectors.store(l, builder.add(a_j, row))
                vectors.store(a, builder.add(a_next, row))
            search.compare(results, chunk.index)
        return context.make_tuple(builder, signature.return_type, search.result())

    return signature, codegen


@inner(fastmath={"contract"})
def _finish_column(A, L1, j, c0, c1, r0, r1, variant, reciprocal, best, where, tid):
    """Divide column j of rows r0:r1 by pivot j, update the columns that the variant needs next, and search column j+1.

    right            A[:, j+1:c1] -= A[:, j] · L1[j, j+1:c1]
    left, crout      A[:, j+1]    -= A[:, c0:j+1] · L1[c0:j+1, j+1]

    The search updates thread tid's maximum |A[r, j+1]| and its row.
    """
    if r1 <= r0:
        return
    last, rest = j + 1 == c1, r0
    if variant != RIGHT and not last:
        chunk = VECTORS * REGISTER // A.itemsize
        chunks, l, u = (r1 - r0) // chunk, address_of(A, r0, c0), address_of(L1, c0, j + 1)
        largest, at = _finish_chunks(A, l, A.strides[1], u, reciprocal, j - c0, chunks)
        if largest > best[tid * 8]:
            best[tid * 8], where[tid * 8] = largest, r0 + at
        rest += chunks * chunk
    rows, l_j = r1 - rest, column(A, j, rest, r1)
    for r in range(rows):
        l_j[r] *= reciprocal
    if last:
        return
    if variant == RIGHT:
        for c in range(j + 1, c1):
            a_c, u_c = column(A, c, rest, r1), L1[j, c]
            for r in range(rows):
                a_c[r] -= l_j[r] * u_c
    else:
        a_next = column(A, j + 1, rest, r1)
        for k in range(c0, j + 1):
            l_k, u_k = column(A, k, rest, r1), L1[k, j + 1]
            for r in range(rows):
                a_next[r] -= l_k[r] * u_k
    _search(A, j + 1, rest, r1, best, where, tid)


@inner()
def _search(A, j, r0, r1, best, where, tid):
    """Search rows r0:r1 for the largest |A[r, j]|, and update thread tid's maximum and its row.

    If several entries are equally large, the upper row is chosen. NaN is ignored.
    """
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
    """Return the global index of local row il on process row p of P, for blocks of nb rows."""
    return (il // nb * P + p) * nb + il % nb


@inner()
def _move_rows(A, L1, j, c0, c1, top, work, threads):
    """Select the pivot row of all threads and ranks, copy it to row j of L1, and copy row j to the pivot's place.

    With one process row, only columns c0:c1 of the leaf are copied, and `_move_beside` copies the others later.
    Otherwise, the exchange is one combined max-and-row reduction over the process column. It overwrites `candidate`
    with the winner's row and the previous row j.
    """
    best, where, candidate = work.best, work.where, work.candidate
    il0, nb, p, P, jb = work.geometry[0], work.geometry[1], work.geometry[2], work.geometry[3], L1.shape[0]
    largest, at = -1.0, np.int64(-1)
    for t in range(threads):
        if best[t * 8] > largest or (best[t * 8] == largest and where[t * 8] < at):
            largest, at = best[t * 8], where[t * 8]
        best[t * 8] = -1.0
    if at < 0 and top > 0:
        at = j  # all entries are NaN: do not swap, so that NaN propagates to the result
        largest = 0.0
    if P == 1:
        work.pivots[j] = _to_global(il0 + at, nb, p, P)
        # Each entry is in a different cache line, perhaps in another thread's cache. Request all lines before waiting
        # for one.
        for c in range(c0, c1):
            prefetch(address_of(A, at, c))
        for c in range(c0, c1):
            L1[j, c] = A[at, c]
            A[at, c] = A[j, c]
        return
    candidate[VALUE] = largest
    candidate[ROW] = _to_global(il0 + at, nb, p, P) if at >= 0 else -1
    candidate[HAS_TOP] = 1.0 if top > 0 else 0.0
    if at >= 0:
        for c in range(jb):
            candidate[HEAD + c] = A[at, c]
    if top > 0:
        for c in range(jb):
            candidate[HEAD + jb + c] = A[j, c]
    begin = cycles()
    if call_at(work.calls[EXCHANGE]) != 0:
        work.state[BROKEN] = 1
        return
    work.state[SWAP_CYCLES] += cycles() - begin
    winner = np.int64(candidate[ROW])
    work.pivots[j] = winner
    for c in range(jb):
        L1[j, c] = candidate[HEAD + c]
    if winner // nb % P == p:
        at = winner // nb // P * nb + winner % nb - il0
        for c in range(jb):
            A[at, c] = candidate[HEAD + jb + c]


@inner()
def _move_beside(tid, threads, A, L1, c0, c1, work):
    """Copy the pivot rows of a leaf c0:c1 to L1, and rows c0:c1 to their places, in this thread's other columns.

    The rows of all pivots are moved column by column. In a column, rows c0:c1 are in one or two cache lines.
    """
    il0, jb = work.geometry[0], L1.shape[0]
    for c in range(tid, jb, threads):
        if c0 <= c < c1:
            continue
        a, u = column(A, c, 0, A.shape[0]), column(L1, c, 0, jb)
        for j in range(c0, c1):
            at = work.pivots[j] - il0
            u[j] = a[at]
            a[at] = a[j]


@inner()
def _row_of_u(L1, j, c0, c1, variant):
    """Compute the entries of U that the left-looking and Crout variants need in addition to the pivot row.

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
def _leaf(tid, threads, A, L1, c0, c1, top, variant, work):
    """Factor columns c0:c1 of the panel one column at a time, as thread `tid` of all threads."""
    rows, tile = A.shape[0], work.geometry[4]
    state, best, where, sync, yield_address = work.state, work.best, work.where, work.sync, work.calls[YIELD]
    tiles = (rows + tile - 1) // tile
    for t in range(tid, tiles, threads):
        r0, r1 = _tile_rows(t, tile, c0 if top > 0 else 0, rows)
        _search(A, c0, r0, r1, best, where, tid)
    for j in range(c0, c1):
        barrier(sync, threads, yield_address)
        if tid == 0:
            _move_rows(A, L1, j, c0, c1, top, work, threads)
            if state[BROKEN] == 0:
                _row_of_u(L1, j, c0, c1, variant)
        barrier(sync, threads, yield_address)
        if state[BROKEN] != 0:
            return
        pivot = L1[j, j]
        if pivot == 0.0:
            if tid == 0 and state[SINGULAR] == 0:
                state[SINGULAR] = j + 1
            pivot = L1.dtype.type(1)  # a column of zeros stays zero; the caller reads SINGULAR
        reciprocal = L1.dtype.type(1) / pivot
        for t in range(tid, tiles, threads):
            r0, r1 = _tile_rows(t, tile, j + 1 if top > 0 else 0, rows)
            _finish_column(A, L1, j, c0, c1, r0, r1, variant, reciprocal, best, where, tid)
    if work.geometry[3] == 1:
        _move_beside(tid, threads, A, L1, c0, c1, work)
        barrier(sync, threads, yield_address)


@inner()
def _update(tid, threads, A, L1, op, top, work):
    """Compute A[r0:, c0:c1] -= A[r0:, k0:k1] · L1[k0:k1, c0:c1] in this thread's tiles.

    The indices are those of the `PanelOp` `op`. With one thread, all rows are updated in one call of GEMM.
    """
    rows, tile = A.shape[0], work.geometry[4]
    first = op[1] if top > 0 else 0
    k0, k1, c0, c1 = op[3], op[4], op[5], op[6]
    minus_one = A.dtype.type(-1)
    if threads == 1:
        tile = max(rows, 1)
    for t in range(tid, (rows + tile - 1) // tile, threads):
        r0, r1 = _tile_rows(t, tile, first, rows)
        if r1 > r0:
            A_k, U, A_c = column_block(A, r0, k0), column_block(L1, k0, c0), column_block(A, r0, c0)
            gemm_at(work.calls[GEMM], minus_one, (r1 - r0, c1 - c0, k1 - k0), A_k, U, A_c)


@jit(INT, INT, MATRIX, MATRIX, *_WORK, also=(INT, INT, MATRIX32, MATRIX32, *_WORK), later=True)
def factor_panel(tid, threads, A, L1, plan, variant, top, work):
    """Perform this thread's part of a panel factorization. All threads receive the same arguments, except `tid`.

    A         this rank's m×jb rows of the panel, from the block row down; L21 overwrites the rows below the block row
    L1        the jb×jb block that is overwritten with L11 and U11
    plan      the operations in order of execution, one `PanelOp` per row
    variant   RIGHT, LEFT or CROUT, for the columns of a leaf
    top       the number of rows of A that belong to the block row: jb on the process row that owns it, otherwise 0

    The first `top` rows of A contain no results afterwards, because L1 contains the finished rows.
    """
    state, yield_address = work.state, work.calls[YIELD]
    one, minus_one = L1.dtype.type(1), L1.dtype.type(-1)
    work.best[tid * 8], work.where[tid * 8] = -1.0, -1
    begin = cycles()
    for step in range(plan.shape[0]):
        op = plan[step]
        k0, k1, c0, c1 = op[3], op[4], op[5], op[6]
        if op[0] == LEAF:
            leaf_begin = cycles()
            _leaf(tid, threads, A, L1, c0, c1, top, variant, work)
            if state[BROKEN] != 0:
                return
            if tid == 0:
                state[LEAF_CYCLES] += cycles() - leaf_begin
        elif op[0] == UPDATE:
            barrier(work.sync, threads, yield_address)
            _update(tid, threads, A, L1, op, top, work)
        elif tid == 0:
            U = column_block(L1, k0, c0)
            if op[0] == SOLVE:
                trsm_at(work.calls[TRSM], one, (k1 - k0, c1 - c0), column_block(L1, k0, k0), U)
            else:
                r0, r1 = op[1], op[2]
                L, C = column_block(L1, r0, k0), column_block(L1, r0, c0)
                gemm_at(work.calls[GEMM], minus_one, (r1 - r0, c1 - c0, k1 - k0), L, U, C)
    barrier(work.sync, threads, yield_address)
    if tid == 0:
        state[ALL_CYCLES] += cycles() - begin


_VARIANTS = {"right": RIGHT, "left": LEFT, "crout": CROUT}
_Callback = ctypes.CFUNCTYPE(ctypes.c_int32)

#: Tiles per thread in FACT. Taller tiles (multiples of NB rows) make products faster, and adjacent rows are processed
#: by the same thread. On 2 threads, a panel of 20000×256 takes 38 ms with tiles of NB rows, 23 ms with 4 tiles per
#: thread, and 19 ms with 2 tiles per thread.
TILES = 2


class HostPanels:
    """The panel factorization of `LuKernels` on the host, which runs on the threads of a team."""

    def __init__(self, team: Team):
        factor_panel.compiled()  # before any clock starts
        self._team, self.threads = team, team.threads
        self._plans: dict[tuple[PanelOp, ...], Array] = {}
        self._yield = sched_yield_address()

    def factor_panel(self, work: Panel, exchange: Exchange | None) -> PanelOutcome:
        jb = work.L1.shape[0]
        number = work.L1.itemsize
        assert work.A.strides[0] == work.L1.strides[0] == number or work.A.shape[0] <= 1, "panels are column-major"
        tiles = -(-work.A.shape[0] // work.rows.nb)
        threads = self.threads if tiles > 1 else 1
        candidate, other = np.zeros((2, HEAD + 2 * jb))
        failure: list[BaseException] = []

        def call_exchange() -> int:
            try:
                assert exchange is not None
                exchange(candidate, other)
                return 0
            except BaseException as error:
                failure.append(error)  # raised below, because an exception cannot cross compiled code
                return 1

        callback = _Callback(call_exchange)
        into_python = ctypes.cast(callback, ctypes.c_void_p).value or 0
        letter, _ = blas.TYPES[work.L1.dtype]
        products = blas.address(f"{letter}gemm"), blas.address(f"{letter}trsm")
        calls = np.array([*products, into_python, self._yield], dtype=np.int64)
        tile = work.rows.nb * max(1, tiles // (TILES * threads))
        geometry = np.array([work.il0, work.rows.nb, work.rows.p, work.rows.P, tile], dtype=np.int64)
        state, sync = np.zeros(8, dtype=np.int64), np.zeros(SYNC, dtype=np.int64)
        pivots = np.empty(jb, dtype=np.int64)
        best, where = np.zeros(8 * threads), np.zeros(8 * threads, dtype=np.int64)
        shared = PanelWork(pivots, geometry, candidate, state, best, where, sync, calls)
        arguments = threads, work.A, work.L1, self._plan(work), _VARIANTS[work.pfact], work.top, shared

        begin = perf_counter()
        if threads == 1:
            factor_panel(0, *arguments)
        else:
            self._team.run(factor_panel, *arguments)
        elapsed = perf_counter() - begin
        if failure:
            raise failure[0]
        work.pivots[:jb], work.pivots[jb] = pivots, state[SINGULAR]
        per_cycle = elapsed / max(1, int(state[ALL_CYCLES]))
        return PanelOutcome(float(state[LEAF_CYCLES]) * per_cycle, float(state[SWAP_CYCLES]) * per_cycle)

    def _plan(self, work: Panel) -> Array:
        """Return the plan of a panel as a table of integers, cached per plan."""
        if work.plan not in self._plans:
            self._plans[work.plan] = np.array(work.plan, dtype=np.int64).reshape(-1, 7)
        return self._plans[work.plan]
