"""Generate matrix entries, with one jump of the generator per block and one 64-bit multiply-add per entry.

The generator is that of `layout.entries`. The entries of a row are generated in blocks of NB into a buffer that stays
in the first-level cache. From this buffer they are stored, multiplied or summed. Therefore a product with a matrix
that is never stored costs less than reading a stored matrix.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from mxpeak.kernels.host.dense.normal import normal
from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, VECTOR, WORDS, inner, jit
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.engine.vector_ir import row
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries

Array = np.ndarray[Any, np.dtype[Any]]

LCG, GAUSSIAN, UNIT_FACTORS = range(3)
KINDS = {"lcg": LCG, "gaussian": GAUSSIAN, "unit-factors": UNIT_FACTORS}
#: The operations on generated entries.
STORE, MULTIPLY, SUM = range(3)
#: Entries that a thread generates per call. A call takes tenths of a second, because Python handles signals only
#: between calls.
PIECE = 1 << 26
#: Empty arrays for the arguments that a task does not need.
NOTHING, NONE = np.empty((0, 0)), np.empty(0)


class EntryTables(NamedTuple):
    """The data of `Entries` as arrays for compiled code, for the rows and columns of one rank.

    integers        kind; NB, p, P of the rows and of the columns; number of local columns
    reals           scale, shift, alpha, beta
    starts          state X of the generator at the rank's first entry in each local row
    a, c            the jumps by 0 … NB-1 columns
    to_block        the jump from one local block of columns to the next, as (A, C)
    """

    integers: np.ndarray
    reals: np.ndarray
    starts: np.ndarray
    a: np.ndarray
    c: np.ndarray
    to_block: np.ndarray


@lru_cache(maxsize=16)
def entry_tables(rows: BlockCyclic, cols: BlockCyclic, entries: Entries) -> EntryTables:
    """Return the `EntryTables` of these rows and columns, cached because a solve needs them repeatedly."""
    first = entries.first + cols.to_global(0) * entries.n
    starts: list[int] = []
    for i0 in range(0, rows.local_size, rows.nb):  # one jump per block; the random numbers within it are consecutive
        starts += lcg.states(entries.seed, first + rows.to_global(i0), min(rows.nb, rows.local_size - i0))
    jumps = [lcg.jump(k * entries.n) for k in range(min(cols.nb, cols.n))]
    to_block = lcg.jump(cols.P * cols.nb * entries.n)
    a, c = zip(*jumps) if jumps else ((), ())
    integers = [KINDS[entries.kind], rows.nb, rows.p, rows.P, cols.nb, cols.p, cols.P, cols.local_size]
    words = (np.array(table, dtype=np.uint64) for table in (starts, a, c, to_block))
    reals = np.array([entries.scale, entries.shift, entries.alpha, entries.beta])
    return EntryTables(np.array(integers, dtype=np.int64), reals, *words)


@inner()
def _fill(buffer, count, i, j0, x, entries):
    """Generate entries (i, j0) … (i, j0+count-1) into buffer[:count]; x is the generator's state at entry (i, j0)."""
    kind, reals, a_table, c_table = entries.integers[0], entries.reals, entries.a, entries.c
    scale, shift, alpha, beta = reals[0], reals[1], reals[2], reals[3]
    if kind == LCG:
        for j in range(count):
            buffer[j] = shift + scale * (np.float64(a_table[j] * x + c_table[j]) * 2.0**-64)
    elif kind == GAUSSIAN:
        for j in range(count):
            buffer[j] = scale * normal(a_table[j] * x + c_table[j])
    else:
        for j in range(count):
            common = np.float64(min(i, j0 + j)) * alpha * beta
            buffer[j] = common + (1.0 if i == j0 + j else -beta if i < j0 + j else -alpha)


@inner(fastmath={"contract", "reassoc"})
def _dot(a, x, count):
    """Return the dot product Σ a_j x_j of the first `count` entries in fp64."""
    total = 0.0
    for j in range(count):
        total += np.float64(a[j]) * x[j]
    return total


@inner(fastmath={"contract", "reassoc"})
def _abs_sum(buffer, count):
    """Return Σ |a_j| over the first `count` entries."""
    total = 0.0
    for j in range(count):
        total += abs(buffer[j])
    return total


_TABLES = types.NamedTuple((INTEGERS, VECTOR, WORDS, WORDS, WORDS, WORDS), EntryTables)
_OPERANDS = (VECTOR, VECTOR, VECTOR, _TABLES)
_TASK = (INT, INT, INT, types.UniTuple(INT, 2))


@jit(*_TASK, MATRIX, *_OPERANDS, also=(*_TASK, MATRIX32, *_OPERANDS), allocates=True, later=True)
def generated(tid, threads, task, part, A, y, x, diagonal, entries):
    """Generate the entries of this thread's share of the rows in `part`, and store, multiply or sum these entries.

    STORE      store A and, unless x is empty, compute y = A x for two vectors stored one after the other
    MULTIPLY   compute y = A x
    SUM        compute y_i = Σ_j |a_ij|
    """
    integers, starts, to_block, (begin, end) = entries.integers, entries.starts, entries.to_block, part
    nb, p, P = integers[1], integers[2], integers[3]
    cnb, q, Q, columns = integers[4], integers[5], integers[6], integers[7]
    rows, A_block, C_block = end - begin, to_block[0], to_block[1]
    buffer = np.empty(cnb)
    for il in range(begin + rows * tid // threads, begin + rows * (tid + 1) // threads):
        i, state = (il // nb * P + p) * nb + il % nb, starts[il]
        total, other = 0.0, 0.0
        for l0 in range(0, columns, cnb):
            j0, count = (l0 // cnb * Q + q) * cnb, min(cnb, columns - l0)
            _fill(buffer, count, i, j0, state, entries)
            if diagonal.shape[0] > 0 and j0 <= i < j0 + count:
                buffer[i - j0] = diagonal[il]
            if task == STORE:
                a = row(A, il, l0, l0 + count)
                for j in range(count):
                    a[j] = buffer[j]
                if x.shape[0] > 0:
                    total += _dot(a, x[l0:], count)
                    other += _dot(a, x[columns + l0 :], count)
            elif task == MULTIPLY:
                total += _dot(buffer, x[l0:], count)
            else:
                total += _abs_sum(buffer, count)
            state = A_block * state + C_block
        if y.shape[0] > 0:
            y[il] = total
            if task == STORE:
                y[y.shape[0] // 2 + il] = other


class HostGenerated:
    """The `GeneratedKernels` of the host, which run on the threads of a team."""

    _team: Team

    def generate(
        self, A: Array, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Array | None = None
    ) -> None:
        self._generated(STORE, A, NONE, NONE, diagonal, entry_tables(rows, cols, entries))

    def generate_with_sums(
        self,
        A: Array,
        rows: BlockCyclic,
        cols: BlockCyclic,
        entries: Entries,
        diagonal: Array | None,
        sums: Array,
        W: Array,
    ) -> None:
        tables, both = entry_tables(rows, cols, entries), np.empty(sums.size)
        self._generated(STORE, A, both, np.ascontiguousarray(W.reshape(-1)), diagonal, tables)
        sums[:] = both.reshape(sums.shape)

    def generated_matvec(
        self, y: Array, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Array | None, x: Array
    ) -> None:
        self._generated(MULTIPLY, NOTHING, y, x, diagonal, entry_tables(rows, cols, entries))

    def generated_row_sums(
        self, sums: Array, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Array | None
    ) -> None:
        self._generated(SUM, NOTHING, sums, NONE, diagonal, entry_tables(rows, cols, entries))

    def _generated(self, task: int, A: Array, y: Array, x: Array, diagonal: Array | None, tables: EntryTables) -> None:
        """Execute STORE, MULTIPLY or SUM on all local rows, with a limited number of entries per call."""
        own, threads, rows = NONE if diagonal is None else diagonal, self._team.threads, len(tables.starts)
        height = max(PIECE * threads // max(int(tables.integers[7]), 1), threads)
        for begin in range(0, rows, height):
            part = begin, min(begin + height, rows)
            self._team.run(generated, threads, task, part, A, y, x, own, tables)

    def signs(self, v: Array, cols: BlockCyclic, seed: int) -> None:
        jumps = [lcg.jump(k) for k in range(min(cols.nb, cols.n))]
        a, c = (np.array(table, dtype=np.uint64) for table in (zip(*jumps) if jumps else ((), ())))
        for j0 in range(0, len(v), cols.nb):
            x = np.uint64(lcg.state(seed, 1 + cols.to_global(j0)))
            block = v[j0 : j0 + cols.nb]
            block[:] = np.where((a * x + c)[: len(block)] >> np.uint64(63), -1.0, 1.0)
